"""OutputLengths: how long answers get, by those that ended.

Owns the observed distribution. What it is used for, room in the pool and the worth of a prompt,
is `admission.py`'s and `phase_policy.py`'s business.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from itertools import accumulate

from omruntime.sequence import Sequence

# The last so many answers count; enough for a stable mean, few enough to follow a new load.
WINDOW = 256
# Before anything was observed.
DEFAULT_LENGTH = 64.0


class OutputLengths:
    """Expected lengths of answers; for the engine thread alone."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []
        # Sums of the first 0, 1, 2, ... sorted lengths.
        self._sums: list[int] = [0]

    @property
    def is_known(self) -> bool:
        """Whether any answer has ended yet."""
        return bool(self._recent)

    def observe(self, length: int) -> None:
        """Count an answer that ended by itself."""
        self._recent.append(length)
        insort(self._sorted, length)
        if len(self._recent) > WINDOW:
            self._sorted.remove(self._recent.popleft())
        self._sums = [0, *accumulate(self._sorted)]

    def expected(self, sequence: Sequence) -> float:
        """Expected tokens of a sequence's whole answer, never beyond its own limit.

        The mean of the observed answers that are longer than what it has so far; an answer
        beyond all of them is expected to go on for a little.
        """
        num_output = sequence.num_output_tokens
        expected = max(DEFAULT_LENGTH, 1.5 * num_output)
        if self._recent:
            first = bisect_right(self._sorted, num_output)
            num_longer = len(self._sorted) - first
            if num_longer:
                expected = (self._sums[-1] - self._sums[first]) / num_longer
            else:
                expected = 1.25 * num_output
        limit = sequence.params.max_new_tokens
        return max(num_output + 1.0, expected) if limit is None else min(limit, expected)

    def num_left(self, sequence: Sequence) -> float:
        """Expected tokens that a sequence still makes; at least 1."""
        return max(1.0, self.expected(sequence) - sequence.num_output_tokens)
