"""BlockPool: which KV blocks are free, and how many sequences hold each of the others.

Owns block ids, reference counts and the order of reuse. What a block holds is
`prefix_cache.py`'s business, the memory behind it `kv_cache.py`'s.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from omruntime.errors import ConfigError

NULL_BLOCK = 0


class BlockPool:
    """Blocks 1 to `num_blocks - 1`; block 0 is the null block and never handed out.

    A released block keeps its content until it is handed out again, least recently released
    first. `retain` brings a free block back with that content.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ConfigError(
                f"num_blocks is {num_blocks}, wanted at least 2: the null block and one to use"
            )
        self.num_blocks = num_blocks
        self._reference_counts = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
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
        return len(self._free)

    @property
    def num_referenced(self) -> int:
        """Blocks that somebody holds."""
        return self.num_usable - len(self._free)

    def reference_count(self, block_id: int) -> int:
        """How often a block is held; 0 when free."""
        return self._reference_counts[block_id]

    def try_allocate(self, num_blocks: int) -> list[int] | None:
        """Take blocks off the free list, least recently released first, one reference each.

        All or nothing: None, and an unchanged pool, when fewer than `num_blocks` are free.
        """
        if num_blocks > len(self._free):
            return None
        block_ids = [self._free.popitem(last=False)[0] for _ in range(num_blocks)]
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
                del self._free[block_id]
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
                self._free[block_id] = None

    def check(self) -> None:
        """Assert that exactly the blocks without references are free, the null block aside."""
        counts = self._reference_counts
        assert counts[NULL_BLOCK] == 0, "somebody holds the null block"
        assert min(counts) >= 0, "a reference count is negative"
        unheld = {i for i in range(1, self.num_blocks) if counts[i] == 0}
        assert unheld == set(self._free), f"free list and counts differ: {unheld ^ set(self._free)}"
