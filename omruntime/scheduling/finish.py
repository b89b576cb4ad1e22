"""When an answer ends by itself: end tokens, stop tokens and length limits."""

from __future__ import annotations

from collections.abc import Collection

from omruntime.sequence import FinishReason, Sequence


def finish_reason(
    sequence: Sequence, eos_token_ids: Collection[int], max_len: int
) -> FinishReason | None:
    """Why a sequence ends with its latest token; None when it goes on.

    The first `min_new_tokens` tokens end nothing, but a constraint that is complete does. An end
    token that is also the last one allowed counts as STOP. `max_len` is the most tokens of prompt
    and answer.
    """
    params, num_output_tokens = sequence.params, sequence.num_output_tokens
    last = sequence.token_ids[-1]
    if num_output_tokens > params.min_new_tokens:
        if last in params.stop_token_ids:
            return FinishReason.STOP
        if last in eos_token_ids and not params.ignore_eos:
            return FinishReason.STOP
    if sequence.matcher is not None and sequence.matcher.is_finished:
        return FinishReason.STOP
    if params.max_new_tokens is not None and num_output_tokens >= params.max_new_tokens:
        return FinishReason.LENGTH
    return FinishReason.LENGTH if len(sequence.token_ids) >= max_len else None
