"""Deltas of our own text layer as pieces: for gRPC, and in this process."""

from __future__ import annotations

from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from server.terminal.bench.records import TokenCounts
from server.terminal.bench.targets.target import AskOptions, Piece
from server.text import TextDelta, Usage

_WHOLE = (FinishReason.STOP, FinishReason.LENGTH)


def piece_of(delta: TextDelta, is_text: bool) -> Piece:
    """One delta; the ids are left out where the conversation is text."""
    usage, reason = delta.usage, delta.finish_reason
    error = ""
    if reason is not None and reason not in _WHOLE:
        error = f"{reason.name}: {delta.error or 'the answer was ended before its time'}"
    return Piece(
        num_tokens=len(delta.token_ids),
        content=delta.text if is_text else delta.token_ids,
        finish_reason="" if reason is None else reason.value,
        error=error,
        counts=None if usage is None else _counts(usage),
    )


def _counts(usage: Usage) -> TokenCounts:
    return TokenCounts(usage.num_prompt_tokens, usage.num_output_tokens, usage.num_cached_tokens)


def params_of(options: AskOptions, num_output_tokens: int) -> SamplingParams:
    """Sampling parameters of one request.

    Raises:
        RequestError: A value is out of range.
    """
    return SamplingParams(
        max_new_tokens=num_output_tokens,
        temperature=options.temperature,
        ignore_eos=options.ignore_eos,
    )
