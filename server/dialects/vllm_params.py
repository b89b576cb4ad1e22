"""Sampling parameters by vLLM's names, as Triton's clients send them in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from omruntime.constraint import Constraint
from omruntime.errors import NotBuiltInError, RequestError
from omruntime.sampling_params import SamplingParams
from server import structured_outputs
from server.field_names import Names

_OURS = {
    **{
        name: name
        for name in (
            *("n", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids"),
            *("presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos"),
            *("skip_special_tokens", "allowed_token_ids", "logit_bias"),
        )
    },
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "include_stop_str_in_output": "include_stop",
    structured_outputs.FIELD: "constraint",
}
PARAMETER_NAMES_BY_OURS: Names = {ours: theirs for theirs, ours in _OURS.items() if ours != theirs}
_LISTS = ("stop_token_ids", "allowed_token_ids")
# What these mean unless set is what happens here anyway.
_NO_EFFECT = {"detokenize": True, "spaces_between_special_tokens": True, "best_of": None}

# Parsed and checked in the loop that sends everybody's tokens, which takes some hundredths of a
# second for so many.
MAX_JSON_CHARS = 1 << 18
PARAMETER_NAMES = frozenset(_OURS) | frozenset(_NO_EFFECT)


def read_json_parameters(text: str) -> dict[str, Any]:
    """Parameters from a JSON object.

    Raises:
        RequestError: It is none.
    """
    if len(text) > MAX_JSON_CHARS:
        raise RequestError(
            f"sampling_parameters has {len(text)} characters, wanted at most {MAX_JSON_CHARS}"
        )
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"sampling_parameters is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise RequestError(
            f"sampling_parameters is a JSON {type(found).__name__}, wanted an object such as "
            f'{{"temperature": 0}}'
        )
    return found


def sampling_params_by_vllm_names(given: Mapping[str, Any]) -> SamplingParams:
    """Our parameters; numbers and flags may come as text, as older clients send them.

    Raises:
        RequestError: A value is of the wrong type or out of range.
        NotBuiltInError: A name is not known here.
    """
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name in _NO_EFFECT and value == _NO_EFFECT[name]:
            continue
        if name not in _OURS:
            raise NotBuiltInError(
                f"sampling parameter {name[:80]!r} with value {str(value)[:80]!r} is not built in; "
                f"leave it out. Known: {', '.join(sorted(_OURS))}"
            )
        if value is not None:
            fields[_OURS[name]] = _value_of(name, value)
    return SamplingParams(**fields)


def _value_of(name: str, value: Any) -> Any:
    if name == "stop":
        return (value,) if isinstance(value, str) else _as_tuple(name, value)
    if isinstance(value, str):
        value = _from_text(name, value)
    if name == structured_outputs.FIELD:
        return _constraint(value)
    if name in _LISTS:
        return _as_tuple(name, value)
    if name == "logit_bias":
        return _biases(value)
    return value


def _from_text(name: str, text: str) -> Any:
    try:
        return json.loads({"True": "true", "False": "false"}.get(text, text))
    except (ValueError, RecursionError):
        raise RequestError(f"{name} is the text {text[:80]!r}, wanted a number or a flag") from None


def _as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise RequestError(f"{name} is {type(value).__name__}, wanted a list")
    return tuple(value)


def _constraint(value: Any) -> Constraint | None:
    if not isinstance(value, dict):
        raise RequestError(f"structured_outputs is {type(value).__name__}, wanted an object")
    return structured_outputs.constraint_of(value)


def _biases(value: Any) -> dict[int, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"logit_bias is {type(value).__name__}, wanted an object")
    try:
        return {int(key): bias for key, bias in value.items()}
    except ValueError as error:
        raise RequestError(f"logit_bias has a key that is no token id: {error}") from error
