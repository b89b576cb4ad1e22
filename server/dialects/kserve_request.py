"""ModelInferRequest to a text request: inputs, parameters and wanted outputs by name.

Names are those of Triton's vLLM backend, beside `input_ids`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omruntime.errors import NotBuiltInError, RequestError
from server import structured_outputs
from server.dialects.kserve_tensors import Tensor, TensorValue, tensors_from
from server.dialects.vllm_params import (
    PARAMETER_NAMES,
    PARAMETER_NAMES_BY_OURS,
    read_json_parameters,
    sampling_params_by_vllm_names,
)
from server.field_names import Names
from server.text import OutputOptions, TextRequest

# Each output and its datatype; all have one value for each answer.
OUTPUTS = {
    "text_output": "BYTES",
    "finish_reason": "BYTES",
    "num_input_tokens": "UINT32",
    "num_output_tokens": "UINT32",
}
# Each optional input and its datatype.
OPTIONAL_INPUTS = {
    "stream": "BOOL",
    "sampling_parameters": "BYTES",
    "exclude_input_in_output": "BOOL",
    "return_finish_reason": "BOOL",
    "return_num_input_tokens": "BOOL",
    "return_num_output_tokens": "BOOL",
}
NAMES: Names = {
    **PARAMETER_NAMES_BY_OURS,
    **structured_outputs.NAMES,
    "text": "text_input",
    "token_ids": "input_ids",
}
"""Our fields by what this dialect calls them."""
_FLAGS = tuple(name for name, datatype in OPTIONAL_INPUTS.items() if datatype == "BOOL")
# An empty last response is never needed here: the one with the end of the answer is the last.
_NO_EFFECT = "triton_enable_empty_final_response"


@dataclass(frozen=True, slots=True)
class InferCall:
    """One inference as asked for.

    Attributes:
        client_id: Sent back as it came; it need not be unique.
        streams: Whether the answer is wanted piece by piece.
        outputs: Names of the outputs wanted.
    """

    client_id: str
    request: TextRequest
    streams: bool
    outputs: tuple[str, ...]


def infer_call_from(message: Any) -> InferCall:
    """Read a request; model and version are left to the caller.

    Raises:
        RequestError: An input or parameter is missing or wrong.
        NotBuiltInError: An input, parameter or output is not known here.
    """
    tensors = tensors_from(message)
    prompt = _prompt_from(tensors)
    inputs, parameters = _options_from(tensors), _parameters_from(message)
    _require_once(inputs, parameters)
    given = inputs | parameters
    flags = {name: _flag(name, given.pop(name)) for name in _FLAGS if name in given}
    sampling = read_json_parameters(_text(given.pop("sampling_parameters", b"{}")))
    _require_once(sampling, given)
    params = sampling_params_by_vllm_names(sampling | given)
    streams = flags.get("stream", False)
    if streams and params.n > 1:
        raise NotBuiltInError(f"n is {params.n} beside stream; send n requests, or do not stream")
    request = TextRequest(
        # Ids of clients need not be unique in Triton, ours must.
        request_id=uuid.uuid4().hex,
        params=params,
        output=OutputOptions(echo=_is_echoed(flags, streams, "text" in prompt)),
        **prompt,
    )
    return InferCall(message.id, request, streams, _outputs_from(message, flags))


def _require_once(some: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    for name in sorted(some.keys() & others.keys()):
        raise RequestError(
            f"{name} is given twice, wanted once: as an input, as a parameter or in "
            f"sampling_parameters"
        )


def _is_echoed(flags: Mapping[str, bool], streams: bool, is_text: bool) -> bool:
    """As in Triton: a text prompt stands before its whole answer unless excluded."""
    if "exclude_input_in_output" not in flags:
        return is_text and not streams
    is_echoed = not flags["exclude_input_in_output"]
    if is_echoed and streams:
        raise RequestError(
            "exclude_input_in_output is false beside stream, wanted true; streams hold the "
            "answer alone"
        )
    return is_echoed


def _prompt_from(tensors: dict[str, Tensor]) -> dict[str, Any]:
    text, ids = tensors.pop("text_input", None), tensors.pop("input_ids", None)
    if (text is None) == (ids is None):
        got = "neither" if text is None else "both"
        raise RequestError(f"got {got} of the inputs text_input and input_ids, wanted one")
    if text is not None:
        _require_datatype(text, "BYTES")
        return {"text": _text(_single(text))}
    assert ids is not None
    _require_datatype(ids, "INT32", "INT64")
    if len(ids.shape) != 1 and not (len(ids.shape) == 2 and ids.shape[0] == 1):
        raise RequestError(
            f"input_ids has shape {list(ids.shape)}, wanted [n] or [1, n]; send one prompt a "
            f"request"
        )
    return {"token_ids": ids.values}


def _options_from(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if name in OPTIONAL_INPUTS:
            _require_datatype(tensor, OPTIONAL_INPUTS[name])
        elif name not in PARAMETER_NAMES:
            raise NotBuiltInError(
                f"input {name[:80]!r} is not built in; leave it out. Known: text_input, input_ids, "
                f"{', '.join(OPTIONAL_INPUTS)} and sampling parameters"
            )
        value = _single(tensor)
        found[name] = _text(value) if tensor.datatype == "BYTES" else value
    return found


def _parameters_from(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, parameter in message.parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        value = None if kind is None else getattr(parameter, kind)
        if name == _NO_EFFECT:
            continue
        if name not in OPTIONAL_INPUTS and name not in PARAMETER_NAMES:
            advice = "give the call a deadline" if name == "timeout" else "leave it out"
            raise NotBuiltInError(f"parameter {name[:80]!r} is not built in; {advice}")
        found[name] = value
    return found


def _outputs_from(message: Any, flags: Mapping[str, bool]) -> tuple[str, ...]:
    wanted = [output.name for output in message.outputs]
    for output in message.outputs:
        if output.name not in OUTPUTS:
            raise RequestError(
                f"output {output.name[:80]!r} is unknown, wanted one of {', '.join(OUTPUTS)}"
            )
        if output.parameters:
            names = ", ".join(sorted(output.parameters))
            raise NotBuiltInError(
                f"output {output.name!r} has the parameters {names}, which are not built in"
            )
    wanted = wanted or ["text_output"]
    return tuple(name for name in OUTPUTS if name in wanted or flags.get(f"return_{name}"))


def _require_datatype(tensor: Tensor, *wanted: str) -> None:
    if tensor.datatype not in wanted:
        raise RequestError(
            f"input {tensor.name!r} has datatype {tensor.datatype[:40]!r}, wanted "
            f"{' or '.join(wanted)}"
        )


def _single(tensor: Tensor) -> TensorValue:
    if len(tensor.values) != 1:
        raise RequestError(
            f"input {tensor.name!r} has {len(tensor.values)} values, wanted one; send a request "
            f"for each prompt"
        )
    return tensor.values[0]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        raise RequestError(f"got the {type(value).__name__} {value!r:.80}, wanted text")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"a text is not UTF-8: {error}") from error


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{name} is {str(value)[:80]!r}, wanted true or false")
    return value
