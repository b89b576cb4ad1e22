"""RowWorkspace: memory for what is computed of one row of logits at a time.

Arrays of this size would come from the kernel anew for every row, and touching them for the first
time costs more than what is computed in them.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

_NUM_ARRAYS = 3


class RowWorkspace(threading.local):
    """A few arrays of a row's length in each thread; content stands until the next row."""

    def __init__(self) -> None:
        self._floats = np.empty((_NUM_ARRAYS, 0), np.float32)
        self._flags = np.empty(0, np.bool_)

    def floats(self, which: int, length: int) -> NDArray[np.float32]:
        """One of three float32 arrays: 0 and 1 are `draw.py`'s, 2 holds an edited row."""
        if self._floats.shape[1] < length:
            self._floats = np.empty((_NUM_ARRAYS, length), np.float32)
        return self._floats[which, :length]

    def flags(self, length: int) -> NDArray[np.bool_]:
        """A bool array."""
        if len(self._flags) < length:
            self._flags = np.empty(length, np.bool_)
        return self._flags[:length]


workspace = RowWorkspace()
