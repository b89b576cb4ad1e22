"""Shape buckets: the fixed sizes a step graph was built for, and the choice among them.

Owns `Bucket` and `BucketTable`. Which program runs a bucket is the manifest's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from omruntime.errors import BundleError


class Phase(Enum):
    """PREFILL computes several known tokens a row, DECODE exactly one."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Bucket:
    """One static shape set of a step graph.

    Attributes:
        batch: Rows; at least 1.
        tokens: New tokens per row; 1 in the decode phase.
        past_blocks: Blocks per row in the block table; 0 without a block table.
    """

    phase: Phase
    batch: int
    tokens: int
    past_blocks: int

    def __post_init__(self) -> None:
        """Check every value by itself.

        Raises:
            BundleError: A value is out of range; the message names it.
        """
        for name, least in (("batch", 1), ("tokens", 1), ("past_blocks", 0)):
            if getattr(self, name) < least:
                raise BundleError(f"{name} is {getattr(self, name)}, wanted at least {least}")
        if self.phase is Phase.DECODE and self.tokens != 1:
            raise BundleError(f"tokens is {self.tokens}, wanted 1 in the decode phase")

    def covers(self, batch: int, tokens: int, past_blocks: int) -> bool:
        """Whether a step of the given size fits into this bucket."""
        return self.batch >= batch and self.tokens >= tokens and self.past_blocks >= past_blocks

    def padded_work(self, block_size: int) -> int:
        """A device-free measure of the time of one run: tokens times positions attended to.

        The constant stands for the layers' matrix work per token, which on the proven models
        weighs about as much as attending to a thousand positions.
        """
        positions = self.past_blocks * block_size + self.tokens
        return self.batch * self.tokens * (1024 + positions)


class BucketTable:
    """All buckets of a bundle; immutable."""

    def __init__(self, buckets: Iterable[Bucket], block_size: int) -> None:
        self.block_size = block_size
        self._buckets = tuple(
            sorted(buckets, key=lambda b: (b.padded_work(block_size), b.batch, b.past_blocks))
        )

    def __iter__(self) -> Iterator[Bucket]:
        return iter(self._buckets)

    def __len__(self) -> int:
        return len(self._buckets)

    def pick(
        self,
        phase: Phase,
        batch: int,
        tokens: int,
        past_blocks: int,
        cost: Callable[[Bucket], float] | None = None,
    ) -> Bucket | None:
        """The cheapest bucket that covers a step, or None when there is none.

        This is the one place where a bucket is chosen.

        Args:
            cost: Predicted seconds, see `CostTable.seconds`; None means by padded work. Of
                equal ones the bucket of less padded work is chosen.
        """
        covering = (
            b for b in self._buckets if b.phase is phase and b.covers(batch, tokens, past_blocks)
        )
        # The buckets are in order of work, and the first of equal ones is taken.
        return next(covering, None) if cost is None else min(covering, key=cost, default=None)

    def max_batch(self, phase: Phase) -> int:
        """The most rows that any bucket of a phase takes; 0 without buckets."""
        return max((b.batch for b in self._buckets if b.phase is phase), default=0)

    def max_tokens(self, past_blocks: int) -> int:
        """The longest prefill chunk of one row over `past_blocks` blocks; 0 when none."""
        return max(
            (
                b.tokens
                for b in self._buckets
                if b.phase is Phase.PREFILL and b.covers(1, 1, past_blocks)
            ),
            default=0,
        )

    def require_cover(self, max_num_seqs: int, max_model_len: int) -> None:
        """Prove that every reachable step has a bucket.

        Reachable are decode steps of 1 to `max_num_seqs` rows and one-row prefill chunks, over
        any past up to `max_model_len - 1` positions. A bucket covers every smaller step, so
        the largest step of each phase decides.

        Raises:
            BundleError: A phase has no bucket for its largest step.
        """
        past_blocks = max(1, -(-(max_model_len - 1) // self.block_size))
        for phase, batch in ((Phase.DECODE, max_num_seqs), (Phase.PREFILL, 1)):
            tokens = 1 if phase is Phase.DECODE else 2
            if self.pick(phase, batch, tokens, past_blocks) is None:
                raise BundleError(
                    f"the buckets do not cover every step: no {phase.value} bucket takes "
                    f"{batch} row(s) over {past_blocks} past blocks of {self.block_size} tokens; "
                    f"rebuild with a larger bucket or lower max_num_seqs / max_model_len"
                )
