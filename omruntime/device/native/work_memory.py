"""Work memory of a program: blocks that its buckets share, taken and given back in turn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# A cache line, so that no two values share one.
_ALIGNMENT = 64
# A block may be this many times as large as what is asked of it.
_MOST_WASTE = 2


class Block:
    """A run of bytes, and how many names look into it."""

    def __init__(self, nbytes: int) -> None:
        whole = np.empty(nbytes + _ALIGNMENT, np.uint8)
        start = -whole.ctypes.data % _ALIGNMENT
        self.bytes: NDArray[np.uint8] = whole[start : start + nbytes]
        self.num_names = 0


class WorkMemory:
    """All blocks of a program."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._free: list[Block] = []

    def begin(self) -> None:
        """A bucket is planned: of what others use, all is free, since no two run at once."""
        self._free = sorted(self._blocks, key=lambda block: block.bytes.nbytes)

    def take(self, nbytes: int) -> Block:
        """A block of at least so many bytes."""
        for block in self._free:
            if nbytes <= block.bytes.nbytes <= max(nbytes * _MOST_WASTE, 4096):
                self._free.remove(block)
                return block
        block = Block(nbytes)
        self._blocks.append(block)
        return block

    def give_back(self, block: Block) -> None:
        """A block that nothing reads any more."""
        self._free.append(block)
        self._free.sort(key=lambda free: free.bytes.nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.bytes.nbytes for block in self._blocks)
