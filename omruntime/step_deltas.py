"""StepDeltas: what the engine tells of its sequences, and the count of those that ended."""

from __future__ import annotations

import time
from collections.abc import Sequence as Rows

from omruntime.outputs import RequestTimings, TokenDelta
from omruntime.sequence import FinishReason, Sequence
from omruntime.step import (
    RowResult,
    SampledToken,
    SamplingFailure,
    ScoredToken,
    StepPlan,
    TokenLogprobs,
)
from omruntime.token_stream import merge

EngineOutput = tuple[str, TokenDelta]
"""A request id and what is new for it."""


class StepDeltas:
    """Writes the deltas; for the engine thread alone.

    Attributes:
        num_finished: Requests ended since start, by `FinishReason` value.
        num_generated_tokens: Tokens of answers since start.
    """

    def __init__(self) -> None:
        self.num_finished = {reason.value: 0 for reason in FinishReason}
        self.num_generated_tokens = 0

    def of_step(self, plan: StepPlan, results: Rows[RowResult]) -> list[EngineOutput]:
        """What a step that was taken over brought, one entry for each sequence with news."""
        now = time.monotonic()
        by_sequence: dict[Sequence, list[RowResult]] = {}
        for row, result in zip(plan.rows, results, strict=True):
            by_sequence.setdefault(row.sequence, []).append(result)
        outputs: list[EngineOutput] = []
        for sequence, own in by_sequence.items():
            delta, failure = _news(own)
            self.num_generated_tokens += len(delta.token_ids)
            if delta.token_ids and sequence.first_token_at is None:
                sequence.first_token_at = now
            if sequence.finish_reason is not None:
                outputs.append((sequence.request_id, merge(delta, self._end(sequence, failure))))
            elif delta.token_ids or delta.prompt_logprobs:
                outputs.append((sequence.request_id, delta))
        return outputs

    def last(self, sequence: Sequence, error: str = "") -> EngineOutput:
        """What ends a finished sequence, without tokens; once for each."""
        return sequence.request_id, self._end(sequence, SamplingFailure(error))

    def _end(self, sequence: Sequence, failure: SamplingFailure) -> TokenDelta:
        reason = sequence.finish_reason
        assert reason is not None, f"{sequence.request_id} has not finished"
        self.num_finished[reason.value] += 1
        return TokenDelta(
            (),
            finish_reason=reason,
            error=failure.reason,
            is_refusal=failure.is_refusal,
            num_cached_tokens=sequence.num_cached_tokens,
            timings=_timings(sequence, time.monotonic()),
        )


def _news(results: Rows[RowResult]) -> tuple[TokenDelta, SamplingFailure]:
    """What the rows of one sequence brought, and why it failed; nothing counts after that."""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    scores: list[ScoredToken] = []
    failure = SamplingFailure("")
    for result in results:
        if isinstance(result, SampledToken):
            token_ids = (result.token_id,)
            logprobs = () if result.logprobs is None else (result.logprobs,)
        elif isinstance(result, ScoredToken):
            scores.append(result)
        elif isinstance(result, SamplingFailure):
            failure = result
            break
    return TokenDelta(token_ids, logprobs, prompt_logprobs=tuple(scores)), failure


def _timings(sequence: Sequence, now: float) -> RequestTimings:
    """Durations up to now; parts that were never reached take no time."""
    scheduled_at = now if sequence.scheduled_at is None else sequence.scheduled_at
    first_token_at = now if sequence.first_token_at is None else sequence.first_token_at
    return RequestTimings(
        queue_s=scheduled_at - sequence.submitted_at,
        prefill_s=first_token_at - scheduled_at,
        decode_s=now - first_token_at,
    )
