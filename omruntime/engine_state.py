"""EngineState: one look at the engine between two steps, for operators.

Owns what is told and how much of it at most; it holds no prompt, no token and no text. How it
gets to whoever asked is `async_engine.py`'s and `worker/`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from omruntime.costs.bucket_use import BucketReport
from omruntime.sequence import Sequence

# A look is taken between two steps, so it must not hold them up: all of it together takes two
# milliseconds, usually less than one. Beyond the bounds the counts still say how many there are.
MAX_LISTED_SEQUENCES = 256
MAX_LISTED_BLOCKS = 64
MAX_MAPPED_BLOCKS = 8192


@dataclass(frozen=True, slots=True)
class SequenceState:
    """One live sequence.

    Attributes:
        request_id: In the engine; of the n answers of a request `ID#INDEX`.
        status: "running" or "waiting".
        urgency: Its class by now.
        max_new_tokens: None: up to the model's limit.
        block_ids: The first `MAX_LISTED_BLOCKS` of its `num_blocks`.
        age_s: Seconds since it was submitted.
        is_constrained: Whether a grammar holds for its answer.
    """

    request_id: str
    tenant: str
    status: str
    urgency: int
    num_prompt_tokens: int
    num_output_tokens: int
    max_new_tokens: int | None
    num_computed_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    num_blocks: int
    block_ids: tuple[int, ...]
    age_s: float
    is_constrained: bool


@dataclass(frozen=True, slots=True)
class EngineState:
    """What the engine holds, and how it has used its buckets.

    Attributes:
        sequences: The first `MAX_LISTED_SEQUENCES` of `num_sequences`, the running first, then
            the waiting in turn.
        block_states: A `BlockState` for each of the blocks from block 1 on, at most
            `MAX_MAPPED_BLOCKS`.
        warm_up_s: Seconds of the whole warm-up.
        switch_s: Seconds that a run of another bucket than the last one's takes longer.
    """

    num_sequences: int
    sequences: tuple[SequenceState, ...]
    buckets: tuple[BucketReport, ...]
    block_states: bytes
    warm_up_s: float
    switch_s: float


def list_sequences(sequences: Iterable[Sequence], now: float) -> tuple[SequenceState, ...]:
    """The states of sequences at `now`, seconds of `time.monotonic`."""
    return tuple(_state_of(sequence, now) for sequence in sequences)


def _state_of(sequence: Sequence, now: float) -> SequenceState:
    return SequenceState(
        request_id=sequence.request_id,
        tenant=sequence.request.scheduling.tenant,
        status=sequence.status.value,
        urgency=sequence.urgency,
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_output_tokens=sequence.num_output_tokens,
        max_new_tokens=sequence.params.max_new_tokens,
        num_computed_tokens=sequence.num_computed_tokens,
        num_cached_tokens=sequence.num_cached_tokens,
        num_preemptions=sequence.num_preemptions,
        num_blocks=len(sequence.block_table),
        block_ids=tuple(sequence.block_table[:MAX_LISTED_BLOCKS]),
        age_s=max(0.0, now - sequence.submitted_at),
        is_constrained=sequence.matcher is not None,
    )
