"""Scheduling, output options, prompt logprobs and scores <-> their wire messages.

The client writes and reads them too. Requests and answers as a whole are `grpc_messages.py`'s.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from omruntime.errors import RequestError
from omruntime.scheduling.turn import Scheduling, Urgency
from server.pb import inference_pb2 as pb
from server.text import ContinuationScore, OutputOptions, PromptToken, Usage

_URGENCY_TO_WIRE = {
    Urgency.LOW: pb.URGENCY_LOW,
    Urgency.NORMAL: pb.URGENCY_NORMAL,
    Urgency.HIGH: pb.URGENCY_HIGH,
}
_URGENCY_FROM_WIRE = {
    pb.URGENCY_UNSPECIFIED: Urgency.NORMAL,
    **{wire: urgency for urgency, wire in _URGENCY_TO_WIRE.items()},
}
_ON_THE_WIRE = ("queue_timeout_s", "ttft_target_s", "itl_target_s", "tenant")
_DEFAULT_SCHEDULING = Scheduling()
# Kept for as long as the tenant has requests, and compared in every step.
MAX_TENANT_CHARS = 128


def scheduling_from(message: pb.Scheduling) -> Scheduling:
    """Read the wishes about a turn; what is not set keeps its default.

    Raises:
        RequestError: A value is out of range.
    """
    urgency = _URGENCY_FROM_WIRE.get(message.urgency)
    if urgency is None:
        raise RequestError(
            f"urgency is {message.urgency}, wanted one of {', '.join(pb.Urgency.keys())}"
        )
    if len(message.tenant) > MAX_TENANT_CHARS:
        raise RequestError(
            f"tenant has {len(message.tenant)} characters, wanted at most {MAX_TENANT_CHARS}"
        )
    given = {name: getattr(message, name) for name in _ON_THE_WIRE if message.HasField(name)}
    return Scheduling(urgency=urgency, **given)


def scheduling_to(scheduling: Scheduling) -> pb.Scheduling:
    """Write the wishes about a turn; defaults are left out.

    Raises:
        RequestError: A wish has no field: it is the server's to decide, or travels otherwise.
    """
    for field in dataclasses.fields(scheduling):
        is_sent = field.name == "urgency" or field.name in _ON_THE_WIRE
        if not is_sent and getattr(scheduling, field.name) != getattr(
            _DEFAULT_SCHEDULING, field.name
        ):
            raise RequestError(
                f"{field.name} cannot be sent, it is for use in process; the deadline of a call is "
                f"its timeout_s"
            )
    message = pb.Scheduling()
    if scheduling.urgency is not Urgency.NORMAL:
        message.urgency = _URGENCY_TO_WIRE[scheduling.urgency]
    for name in _ON_THE_WIRE:
        value = getattr(scheduling, name)
        if value != getattr(_DEFAULT_SCHEDULING, name):
            setattr(message, name, value)
    return message


def output_from(message: pb.OutputOptions) -> OutputOptions:
    """Read what a reply holds."""
    return OutputOptions(**{descriptor.name: value for descriptor, value in message.ListFields()})


def output_to(output: OutputOptions) -> pb.OutputOptions:
    """Write what a reply holds; defaults are left out."""
    set_fields: dict[str, Any] = {
        name: value for name, value in dataclasses.asdict(output).items() if value
    }
    return pb.OutputOptions(**set_fields)


def prompt_tokens_to(tokens: Iterable[PromptToken]) -> list[pb.PromptTokenLogprobs]:
    """Write logprobs of a prompt."""
    return [
        pb.PromptTokenLogprobs(
            token_id=token.token_id,
            logprob=token.logprob,
            rank=token.rank,
            top=[pb.TopLogprob(token_id=i, logprob=value) for i, value in token.top],
        )
        for token in tokens
    ]


def prompt_tokens_from(messages: Iterable[pb.PromptTokenLogprobs]) -> tuple[PromptToken, ...]:
    """Read logprobs of a prompt."""
    return tuple(
        PromptToken(
            message.token_id,
            message.logprob if message.HasField("logprob") else None,
            message.rank if message.HasField("rank") else None,
            tuple((entry.token_id, entry.logprob) for entry in message.top),
        )
        for message in messages
    )


def score_to(score: ContinuationScore) -> pb.ContinuationScore:
    """Write the score of one continuation."""
    return pb.ContinuationScore(
        logprob=score.logprob,
        is_greedy=score.is_greedy,
        tokens=prompt_tokens_to(score.tokens),
        usage=pb.Usage(**dataclasses.asdict(score.usage)),
    )


def score_from(message: pb.ContinuationScore) -> ContinuationScore:
    """Read the score of one continuation."""
    usage = message.usage
    return ContinuationScore(
        message.logprob,
        message.is_greedy,
        prompt_tokens_from(message.tokens),
        Usage(usage.num_prompt_tokens, usage.num_output_tokens, usage.num_cached_tokens),
    )
