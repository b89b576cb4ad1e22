"""The request bodies of text-generation-inference's routes, and what they ask for.

Names, defaults and meanings are those of its API document; MindIE's service takes the same bodies
and adds `priority` and `timeout`. A parameter that is not built in is refused by name, and so is
one that nobody knows.

Source: text-generation-inference 2.4, docs/openapi.json; MindIE Service, Text Inference API.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from omruntime.constraint import Constraint
from omruntime.errors import FieldError
from omruntime.sampling_params import MAX_SEED, SamplingParams
from omruntime.scheduling.turn import Scheduling
from server.http.schema import FastList
from server.text import TextRequest

DEFAULT_MAX_NEW_TOKENS = 100
# Any of these turns sampling on, as `do_sample` does.
_SAMPLING = ("temperature", "top_k", "top_p")
# Values that ask for nothing special.
_NOT_BUILT_IN: dict[str, tuple[Any, ...]] = {
    "adapter_id": (None,),
    "best_of": (None, 1),
    "priority": (None, 5),
    "truncate": (None,),
    "typical_p": (None, 1.0),
    "watermark": (None, False),
}


class Grammar(BaseModel):
    """What the answer's text may be: a JSON Schema, plain or in an object, or an expression."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["json", "json_schema", "regex"]
    value: Any


class Parameters(BaseModel):
    """How to generate."""

    model_config = ConfigDict(extra="forbid")

    max_new_tokens: StrictInt | None = Field(
        default=None, description=f"Left out: {DEFAULT_MAX_NEW_TOKENS}."
    )
    do_sample: StrictBool | None = Field(
        default=None, description="Without it, temperature, top_k or top_p the best token is taken."
    )
    temperature: StrictFloat | None = None
    top_k: StrictInt | None = None
    top_p: StrictFloat | None = None
    repetition_penalty: StrictFloat | None = None
    frequency_penalty: StrictFloat | None = None
    seed: StrictInt | None = None
    stop: FastList[StrictStr] | None = None
    grammar: Grammar | None = None
    return_full_text: StrictBool | None = None
    details: StrictBool | None = None
    decoder_input_details: StrictBool | None = None
    top_n_tokens: StrictInt | None = None
    timeout: StrictInt | None = Field(
        default=None, gt=0, le=3600, description="Seconds after which the request ends; MindIE's."
    )
    adapter_id: StrictStr | None = None
    best_of: StrictInt | None = None
    priority: StrictInt | None = None
    truncate: StrictInt | None = None
    typical_p: StrictFloat | None = None
    watermark: StrictBool | None = None

    @property
    def has_details(self) -> bool:
        """Either of the two asks for all details."""
        return bool(self.details or self.decoder_input_details)


class GenerateBody(BaseModel):
    """POST /generate, /generate_stream and /."""

    model_config = ConfigDict(extra="forbid")

    inputs: StrictStr
    parameters: Parameters | None = None
    stream: StrictBool | None = None

    @property
    def wanted(self) -> Parameters:
        """The parameters, all of them left out when there are none."""
        return self.parameters or Parameters()


def text_request_of(body: GenerateBody, request_id: str, streams: bool) -> TextRequest:
    """What a body asks for.

    Raises:
        RequestError: A value is out of range or not built in; the message names it.
    """
    wanted = body.wanted
    for name, harmless in _NOT_BUILT_IN.items():
        if getattr(wanted, name) not in harmless:
            raise FieldError(name, f"{name} is not built in; leave it out")
    if wanted.decoder_input_details and streams:
        raise FieldError(
            "decoder_input_details",
            "decoder_input_details is for whole replies; do not stream, or leave it out",
        )
    timeout_s = wanted.timeout
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    return TextRequest(
        request_id=request_id,
        params=_params_of(wanted, streams),
        text=body.inputs,
        scheduling=Scheduling(deadline=deadline),
    )


def _params_of(wanted: Parameters, streams: bool) -> SamplingParams:
    is_sampled = wanted.do_sample or any(getattr(wanted, n) is not None for n in _SAMPLING)
    temperature = (1.0 if wanted.temperature is None else wanted.temperature) if is_sampled else 0.0
    seed = wanted.seed
    if seed is None and temperature > 0:
        # Drawn here, since the reply's details tell it.
        seed = secrets.randbelow(MAX_SEED + 1)
    logprobs = wanted.top_n_tokens
    if logprobs is None and (streams or wanted.has_details):
        logprobs = 0
    limit = wanted.max_new_tokens
    return SamplingParams(
        max_new_tokens=DEFAULT_MAX_NEW_TOKENS if limit is None else limit,
        temperature=temperature,
        # What is left out is off, whatever the checkpoint recommends.
        top_k=wanted.top_k or 0,
        top_p=1.0 if wanted.top_p is None else wanted.top_p,
        min_p=0.0,
        repetition_penalty=1.0 if wanted.repetition_penalty is None else wanted.repetition_penalty,
        frequency_penalty=wanted.frequency_penalty or 0.0,
        seed=seed,
        stop=tuple(wanted.stop or ()),
        include_stop=True,
        logprobs=logprobs,
        prompt_logprobs=0 if wanted.decoder_input_details else None,
        constraint=_constraint_of(wanted.grammar),
    )


def _constraint_of(grammar: Grammar | None) -> Constraint | None:
    if grammar is None:
        return None
    value = grammar.value
    try:
        if grammar.type == "regex":
            return Constraint(regex=value)
        if grammar.type == "json_schema":
            value = value.get("schema") if isinstance(value, dict) else None
        if isinstance(value, str):
            return Constraint(json_schema=value)
        if not isinstance(value, dict):
            raise FieldError("grammar", "grammar holds no JSON Schema; set it as grammar.value")
        return Constraint(json_schema=json.dumps(value, ensure_ascii=False))
    except RecursionError as error:
        raise FieldError("grammar", "the schema is nested too deeply") from error
