"""BlockPool: which KV blocks are free, and how many sequences hold each of the others.

Owns block ids, reference counts and the order of reuse. What a block holds is
`prefix_cache.py`'s business, the memory behind it `kv_cache.py`'s.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum

from omruntime.errors import ConfigError

NULL_BLOCK = 0


class Retention(IntEnum):
    """What a free block's content is worth: blocks of less worth are handed out first."""

    NOTHING = 0
    CACHED = 1
    KEPT = 2


class BlockState(IntEnum):
    """What a block is good for at the moment: the retentions of free blocks, and who holds it."""

    EMPTY = 0
    CACHED = 1
    KEPT = 2
    HELD = 3
    SHARED = 4


class BlockPool:
    """Blocks 1 to `num_blocks - 1`; block 0 is the null block and never handed out.

    A released block keeps its content until it is handed out again: those of the least
    retention first, of these the least recently released. Free blocks to be kept are at most
    half of the pool, beyond that the oldest of them go first, so that old favourites do not
    leave the rest without a cache. `retain` brings a free block back with its content.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ConfigError(
                f"num_blocks is {num_blocks}, wanted at least 2: the null block and one to use"
            )
        self.num_blocks = num_blocks
        self._reference_counts = [0] * num_blocks
        self._retentions = [Retention.NOTHING] * num_blocks
        self._free: tuple[OrderedDict[int, None], ...] = tuple(OrderedDict() for _ in Retention)
        self._free[Retention.NOTHING].update(dict.fromkeys(range(1, num_blocks)))
        self._on_reuse: Callable[[int], object] | None = None

    def on_reuse(self, forget: Callable[[int], object]) -> None:
        """Call `forget` with each block that is handed out, as its old content ends there."""
        self._on_reuse = forget

    @property
    def num_usable(self) -> int:
        """Blocks that can be handed out: all but the null block."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return sum(map(len, self._free))

    @property
    def num_referenced(self) -> int:
        """Blocks that somebody holds."""
        return self.num_usable - self.num_free

    @property
    def num_free_cached(self) -> int:
        """Blocks that nobody holds and whose content can be given out."""
        return self.num_free - len(self._free[Retention.NOTHING])

    def states(self, max_blocks: int) -> bytes:
        """The `BlockState` of each block from block 1 on, at most so many."""
        states = bytearray(self._retentions[1 : max_blocks + 1])
        held, shared = int(BlockState.HELD), int(BlockState.SHARED)
        for index, count in enumerate(self._reference_counts[1 : max_blocks + 1]):
            if count:
                states[index] = held if count == 1 else shared
        return bytes(states)

    def reference_count(self, block_id: int) -> int:
        """How often a block is held; 0 when free."""
        return self._reference_counts[block_id]

    def try_allocate(self, num_blocks: int) -> list[int] | None:
        """Take free blocks in the order of reuse, one reference each.

        All or nothing: None, and an unchanged pool, when fewer than `num_blocks` are free.
        """
        if num_blocks > self.num_free:
            return None
        block_ids = [self._pop_free() for _ in range(num_blocks)]
        for block_id in block_ids:
            self._reference_counts[block_id] = 1
            if self._on_reuse is not None:
                self._on_reuse(block_id)
        return block_ids

    def retain(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each block; a free one leaves the free list, content intact."""
        for block_id in block_ids:
            assert 0 < block_id < self.num_blocks, f"block {block_id} cannot be held"
            if self._reference_counts[block_id] == 0:
                del self._free[self._retentions[block_id]][block_id]
            self._reference_counts[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Give back one reference to each block of a table in position order.

        Goes from the tail to the head, so that the tail is reused first: cached blocks are of
        no use without those before them.
        """
        for block_id in reversed(block_ids):
            count = self._reference_counts[block_id] - 1
            assert count >= 0, f"block {block_id} was released more often than held"
            self._reference_counts[block_id] = count
            if count == 0:
                self._free[self._retentions[block_id]][block_id] = None

    def set_retention(self, block_id: int, retention: Retention) -> None:
        """Say what a block's content is worth from now on."""
        if self._reference_counts[block_id] == 0 and self._retentions[block_id] != retention:
            del self._free[self._retentions[block_id]][block_id]
            self._free[retention][block_id] = None
        self._retentions[block_id] = retention

    def rebuild(self, block_tables: Iterable[Sequence[int]]) -> None:
        """Count all references anew from the tables that hold blocks; contents are worth nothing.

        For repair only: whatever the counts said before is forgotten.
        """
        self._reference_counts = [0] * self.num_blocks
        for block_id in (b for table in block_tables for b in table):
            self._reference_counts[block_id] += 1
        self._retentions = [Retention.NOTHING] * self.num_blocks
        for free in self._free:
            free.clear()
        unheld = (i for i in range(1, self.num_blocks) if self._reference_counts[i] == 0)
        self._free[Retention.NOTHING].update(dict.fromkeys(unheld))

    def check(self) -> None:
        """Assert that exactly the blocks without references are free, the null block aside."""
        counts = self._reference_counts
        assert counts[NULL_BLOCK] == 0, "somebody holds the null block"
        assert min(counts) >= 0, "a reference count is negative"
        unheld = {i for i in range(1, self.num_blocks) if counts[i] == 0}
        free = {i for level in self._free for i in level}
        assert len(free) == self.num_free, "a block is free twice"
        assert unheld == free, f"free list and counts differ: {unheld ^ free}"
        for retention, level in zip(Retention, self._free, strict=True):
            assert all(self._retentions[i] == retention for i in level), "retentions differ"

    def _pop_free(self) -> int:
        """Take the next block in the order of reuse off the free lists, of which one has any."""
        kept = self._free[Retention.KEPT]
        levels = self._free if 2 * len(kept) <= self.num_usable else (kept,)
        level = next(level for level in levels if level)
        block_id, _ = level.popitem(last=False)
        return block_id
