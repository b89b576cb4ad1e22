"""StepPlan and StepOutput: all that scheduler, executor and sampler tell each other."""

from __future__ import annotations

from dataclasses import dataclass

from omruntime.buckets import Bucket
from omruntime.sequence import Sequence


@dataclass(frozen=True, slots=True)
class RowPlan:
    """One row of a step: compute `num_tokens` known tokens of a sequence.

    Attributes:
        start: The first position to compute; equals the past length.
        samples: Whether these are the last known tokens, so that the row's logits give the
            next one.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One run of one program.

    Attributes:
        bucket: Covers the rows; the scheduler chose it through `BucketTable.pick`.
        block_copies: (source, target) blocks to copy before the run, for copy-on-write.
    """

    bucket: Bucket
    rows: tuple[RowPlan, ...]
    block_copies: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities after temperature 1 and no filter.

    Attributes:
        logprob: Of the chosen token.
        top: (token id, logprob) of the best k, best first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The next token of one row."""

    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class SamplingFailure:
    """Why one row has no next token; its sequence ends with `FinishReason.ERROR`."""

    reason: str
