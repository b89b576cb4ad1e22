"""StepDeltas: what the engine tells of its sequences, and the count of those that ended."""

from __future__ import annotations

import time
from collections.abc import Sequence as Rows

from omruntime.outputs import RequestTimings, TokenDelta
from omruntime.sequence import FinishReason, Sequence
from omruntime.step import SampledToken, SamplingFailure, StepPlan
from omruntime.token_stream import merge

Sampled = SampledToken | SamplingFailure | None

EngineOutput = tuple[str, TokenDelta]
"""A request id and what is new for it."""


class StepDeltas:
    """Writes the deltas; for the engine thread alone.

    Attributes:
        num_finished: Requests ended since start, by `FinishReason` value.
    """

    def __init__(self) -> None:
        self.num_finished = {reason.value: 0 for reason in FinishReason}

    def of_step(self, plan: StepPlan, sampled: Rows[Sampled]) -> list[EngineOutput]:
        """What a step that was taken over brought, one entry for each row that has news."""
        now = time.monotonic()
        outputs: list[EngineOutput] = []
        for row, token in zip(plan.rows, sampled, strict=True):
            sequence = row.sequence
            if isinstance(token, SampledToken):
                if sequence.first_token_at is None:
                    sequence.first_token_at = now
                outputs.append((sequence.request_id, self._token(sequence, token)))
            elif isinstance(token, SamplingFailure):
                outputs.append(self.last(sequence, token.reason))
        return outputs

    def last(self, sequence: Sequence, error: str = "") -> EngineOutput:
        """What ends a finished sequence, without tokens; once for each."""
        return sequence.request_id, self._end(sequence, error)

    def _token(self, sequence: Sequence, token: SampledToken) -> TokenDelta:
        logprobs = () if token.logprobs is None else (token.logprobs,)
        delta = TokenDelta((token.token_id,), logprobs)
        return delta if sequence.finish_reason is None else merge(delta, self._end(sequence, ""))

    def _end(self, sequence: Sequence, error: str) -> TokenDelta:
        reason = sequence.finish_reason
        assert reason is not None, f"{sequence.request_id} has not finished"
        self.num_finished[reason.value] += 1
        return TokenDelta(
            (),
            finish_reason=reason,
            error=error,
            num_cached_tokens=sequence.num_cached_tokens,
            timings=_timings(sequence, time.monotonic()),
        )


def _timings(sequence: Sequence, now: float) -> RequestTimings:
    """Durations up to now; parts that were never reached take no time."""
    scheduled_at = now if sequence.scheduled_at is None else sequence.scheduled_at
    first_token_at = now if sequence.first_token_at is None else sequence.first_token_at
    return RequestTimings(
        queue_s=scheduled_at - sequence.submitted_at,
        prefill_s=first_token_at - scheduled_at,
        decode_s=now - first_token_at,
    )
