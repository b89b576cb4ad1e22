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
        samples: Whether the row's logits give the next token.
        is_computed: Whether the one token's keys and values are in the pool already, so that
            only its logits are wanted. A sequence may have several such rows in a step.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool
    is_computed: bool = False

    @property
    def num_prompt_tokens(self) -> int:
        """How many tokens of the prompt the row computes."""
        left = self.sequence.num_prompt_tokens - self.start
        return 0 if left <= 0 or self.is_computed else min(left, self.num_tokens)

    @property
    def scores(self) -> bool:
        """Whether the row's logits say how likely the prompt's next token was."""
        return self.is_computed and not self.samples


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
        logprob: Of the chosen token, or of the prompt's.
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
class ScoredToken:
    """How likely a prompt's token was, given those before it.

    Attributes:
        rank: 1 when no other token was likelier; equal ones share the better rank.
    """

    logprobs: TokenLogprobs
    rank: int


@dataclass(frozen=True, slots=True)
class SamplingFailure:
    """Why one row has no next token; its sequence ends with `FinishReason.ERROR`.

    Attributes:
        is_refusal: Whether the request's own parameters leave none, and will again.
    """

    reason: str
    is_refusal: bool = False


RowResult = SampledToken | ScoredToken | SamplingFailure | None
"""What came of a row; None of one that neither samples nor scores."""
