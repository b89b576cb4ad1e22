"""StepBlocks: the blocks that the rows of one step write to.

Owns growth and copy-on-write of block tables. Who is preempted when blocks are short is
`scheduler.py`'s business; this file only says how many are wanted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from omruntime.blocks.block_pool import BlockPool
from omruntime.blocks.prefix_cache import PrefixCache
from omruntime.step import RowPlan

BlockCopies = tuple[tuple[int, int], ...]


class StepBlocks:
    """Gives the rows of a step blocks that they alone may write to."""

    def __init__(self, pool: BlockPool, cache: PrefixCache | None, block_size: int) -> None:
        self._pool = pool
        self._cache = cache
        self._block_size = block_size

    def num_wanted(self, rows: Iterable[RowPlan]) -> int:
        """Blocks that `provide` would take for these rows."""
        num_blocks = 0
        copies: Counter[int] = Counter()
        for row in _writing(rows):
            num_blocks += self._num_growth(row)
            tail = self._written_tail(row)
            # Each row that copies lets go of the block; the last one left writes in place.
            if tail is not None and self._pool.reference_count(tail) - copies[tail] > 1:
                copies[tail] += 1
                num_blocks += 1
        return num_blocks

    def provide(self, rows: Iterable[RowPlan]) -> BlockCopies:
        """Grow the rows' block tables over exactly the tokens to compute.

        Needs `num_wanted(rows)` free blocks. Frees none, so that no block is the source of one
        copy and the target of another.

        Returns:
            (source, target) blocks to copy before the step runs.
        """
        copies: list[tuple[int, int]] = []
        for row in _writing(rows):
            tail = self._written_tail(row)
            if tail is not None:
                copies.extend(self._own(row, tail))
            num_growth = self._num_growth(row)
            if num_growth:
                row.sequence.block_table += self._take(num_growth)
        return tuple(copies)

    def _own(self, row: RowPlan, tail: int) -> BlockCopies:
        """Make the block that a row writes into the row's alone."""
        if self._pool.reference_count(tail) == 1:
            # Others' tokens may be cached behind the shared part; they end with the write.
            if self._cache is not None:
                self._cache.forget(tail)
            return ()
        [target] = self._take(1)
        row.sequence.block_table[row.start // self._block_size] = target
        self._pool.release([tail])
        return ((tail, target),)

    def _take(self, num_blocks: int) -> list[int]:
        block_ids = self._pool.try_allocate(num_blocks)
        assert block_ids is not None, f"{num_blocks} blocks were promised, not all are free"
        return block_ids

    def _num_growth(self, row: RowPlan) -> int:
        end = row.start + row.num_tokens
        return -(-end // self._block_size) - len(row.sequence.block_table)

    def _written_tail(self, row: RowPlan) -> int | None:
        """The partly filled block that the row writes on; None when it begins a new one."""
        if row.start % self._block_size == 0:
            return None
        return row.sequence.block_table[row.start // self._block_size]


def _writing(rows: Iterable[RowPlan]) -> Iterable[RowPlan]:
    """The rows that write to the pool."""
    return (row for row in rows if not row.is_computed)
