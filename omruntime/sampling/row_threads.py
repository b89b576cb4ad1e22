"""RowThreads: the rows of one step over a few threads, where they are large enough to gain.

NumPy lets go of the interpreter's lock while it works on a row, and the cores are idle while the
engine thread samples.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Sequence as Rows
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item")
Result = TypeVar("Result")

# More threads only wait for memory.
MAX_THREADS = 4
# Numbers of a step from which a second thread pays: handing over takes about 50 microseconds.
LEAST_NUMBERS = 1 << 20
_NUM_TIMED = 3
_CLEARLY_FASTER = 0.8


def most_threads() -> int:
    """Threads that are worth it: one for each core that this process may use, and not many."""
    return min(len(os.sched_getaffinity(0)), MAX_THREADS)


class RowThreads:
    """Calls a function for parts of the rows; no row may depend on another."""

    def __init__(self, num_threads: int | None = None) -> None:
        """Prepare; no thread is started before it is needed.

        Args:
            num_threads: None means `most_threads`.
        """
        self._num_threads = most_threads() if num_threads is None else num_threads
        self._pool: ThreadPoolExecutor | None = None

    @property
    def num_threads(self) -> int:
        """Threads that a large step is shared out over."""
        return self._num_threads

    def is_shared(self, rows: NDArray[np.float32]) -> bool:
        """Whether a step of these rows is large enough to share out."""
        return self._num_threads > 1 and rows.size >= LEAST_NUMBERS

    def calibrate(self, timed: Callable[[], float]) -> None:
        """Keep to one thread from now on unless more are clearly faster.

        On cores that others keep busy, and a device's own threads may be among them, handing
        rows over takes longer than it saves.

        Args:
            timed: Samples a large step and returns the seconds of it.
        """
        if self._num_threads < 2:
            return
        shared = min(timed() for _ in range(_NUM_TIMED))
        num_threads, self._num_threads = self._num_threads, 1
        alone = min(timed() for _ in range(_NUM_TIMED))
        if shared < _CLEARLY_FASTER * alone:
            self._num_threads = num_threads

    def map(
        self,
        call: Callable[[Rows[NDArray[np.float32]], Rows[Item]], list[Result]],
        rows: Rows[NDArray[np.float32]],
        items: Rows[Item],
    ) -> list[Result]:
        """The results in order; the first error of a call is raised.

        Args:
            call: Gives one result for each row of its part.
            rows: Of one length.
            items: One for each row.
        """
        count = min(self._num_threads, len(items))
        if count < 2 or len(rows) * len(rows[0]) < LEAST_NUMBERS:
            return call(rows, items)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="sampler")
        edges = [len(items) * i // count for i in range(count + 1)]
        parts = [(rows[first:last], items[first:last]) for first, last in pairwise(edges)]
        others = [self._pool.submit(call, *part) for part in parts[1:]]
        results = call(*parts[0])
        for other in others:
            results += other.result()
        return results
