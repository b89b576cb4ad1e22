"""GenerateRequest of the vLLM dialect to a text request."""

from __future__ import annotations

import uuid
from typing import Any

from omruntime.constraint import Constraint
from omruntime.errors import NotBuiltInError, RequestError
from omruntime.sampling_params import SamplingParams
from server.field_names import SAMPLING_NAMES, Names
from server.text import OutputOptions, TextRequest

_REFUSED = ("mm_inputs", "kv_transfer_params", "kv_transfer_params_json")
_REFUSED_PARAMS = ("prompt_logprobs", "truncate_prompt_tokens", "grammar", "structural_tag")
# 0 is how this dialect leaves them out.
_UNSET_AT_ZERO = ("top_p", "top_k", "min_p", "repetition_penalty", "n")
_OPTIONAL = ("temperature", "logprobs", "seed")
_PLAIN = ("frequency_penalty", "presence_penalty", "ignore_eos", "skip_special_tokens")
NAMES: Names = {
    **SAMPLING_NAMES,
    "max_new_tokens": "max_tokens",
    "token_ids": "tokenized.input_ids",
}
"""Our fields by what this dialect calls them."""


def generate_request_from(message: Any) -> TextRequest:
    """Read a request; makes a request id if there is none.

    Raises:
        RequestError: A field is missing or out of range.
        NotBuiltInError: A field is set that has no counterpart here.
    """
    for name in _REFUSED:
        if message.HasField(name):
            raise NotBuiltInError(f"{name} is not built in; leave it out")
    if message.HasField("data_parallel_rank") and message.data_parallel_rank != 0:
        raise NotBuiltInError(
            f"data_parallel_rank is {message.data_parallel_rank}, wanted 0: there is one engine"
        )
    which = message.WhichOneof("input")
    if which is None:
        raise RequestError("input is not set, wanted tokenized or text")
    params = _sampling_params_from(message.sampling_params)
    return TextRequest(
        request_id=message.request_id or uuid.uuid4().hex,
        params=params,
        text=message.text if which == "text" else None,
        token_ids=tuple(message.tokenized.input_ids) if which == "tokenized" else None,
        # Replies hold token ids alone; only stop strings need the text.
        output=OutputOptions(omit_text=not params.stop),
    )


def _sampling_params_from(message: Any) -> SamplingParams:
    for name in _REFUSED_PARAMS:
        if message.HasField(name):
            raise NotBuiltInError(f"sampling_params.{name} is not built in; leave it out")
    given: dict[str, Any] = {name: getattr(message, name) for name in _PLAIN}
    for name in _UNSET_AT_ZERO:
        if getattr(message, name):
            given[name] = getattr(message, name)
    for name in _OPTIONAL:
        if message.HasField(name):
            given[name] = getattr(message, name)
    if message.HasField("max_tokens"):
        given["max_new_tokens"] = message.max_tokens
    return SamplingParams(
        min_new_tokens=message.min_tokens,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        include_stop=message.include_stop_str_in_output,
        logit_bias=dict(message.logit_bias),
        constraint=_constraint_from(message),
        **given,
    )


def _constraint_from(message: Any) -> Constraint | None:
    kind = message.WhichOneof("constraint")
    if kind == "choice":
        return Constraint(choices=tuple(message.choice.choices))
    return None if kind is None else Constraint(**{kind: getattr(message, kind)})
