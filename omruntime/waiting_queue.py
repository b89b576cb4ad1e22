"""WaitingQueue: the sequences that hold no blocks, in order of arrival, within limits.

Owns order and queue limits. Who is admitted next is the scheduler's choice.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from omruntime.errors import OverloadedError
from omruntime.sequence import Sequence


class WaitingQueue:
    """Sequences by arrival; a preempted one comes back to its place among them."""

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._sequences: list[Sequence] = []
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        """A snapshot: the queue may change meanwhile."""
        return iter(tuple(self._sequences))

    def require_room(self, num_tokens: int) -> None:
        """Check that a new request of `num_tokens` may wait; an empty queue takes any.

        Raises:
            OverloadedError: A limit would be passed.
        """
        if not self._sequences:
            return
        if len(self._sequences) >= self._max_requests:
            raise OverloadedError(
                f"{len(self._sequences)} requests are waiting, the limit max_queued_requests is "
                f"{self._max_requests}; retry later"
            )
        if self.num_tokens + num_tokens > self._max_tokens:
            raise OverloadedError(
                f"{self.num_tokens} tokens are waiting and the request has {num_tokens}, the "
                f"limit max_queued_tokens is {self._max_tokens}; retry later"
            )

    def insert(self, sequence: Sequence) -> None:
        """Put a sequence in its place by arrival, whatever the limits say."""
        insort(self._sequences, sequence, key=_arrival)
        self.num_tokens += len(sequence.token_ids)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, as it is admitted or finished."""
        self._sequences.remove(sequence)
        self.num_tokens -= len(sequence.token_ids)

    def check(self) -> None:
        """Assert order and token count."""
        arrivals = [_arrival(s) for s in self._sequences]
        assert arrivals == sorted(set(arrivals)), f"not in order of arrival: {arrivals}"
        num_tokens = sum(len(s.token_ids) for s in self._sequences)
        assert num_tokens == self.num_tokens, f"{self.num_tokens} tokens counted, {num_tokens} wait"


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival
