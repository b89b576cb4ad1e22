"""WaitingQueue: the sequences that hold no blocks, in turn, within limits.

Owns order and queue limits. Who is admitted next is the scheduler's choice.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterator

from omruntime.errors import OverloadedError
from omruntime.scheduling.retry_pace import RetryPace
from omruntime.scheduling.turn import Urgency
from omruntime.sequence import Sequence


class WaitingQueue:
    """Sequences by urgency, then by tenant; in both, preempted ones first, then by arrival."""

    def __init__(
        self, max_requests: int, max_tokens: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin empty; `clock` paces what refused callers are told."""
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._classes: dict[int, dict[str, list[Sequence]]] = {u: {} for u in Urgency}
        self._num_by_own_urgency = dict.fromkeys(map(int, Urgency), 0)
        self._num_sequences = 0
        self._clock = clock
        self._pace = RetryPace()
        self.num_tokens = 0

    def __len__(self) -> int:
        return self._num_sequences

    def __iter__(self) -> Iterator[Sequence]:
        """A snapshot in turn, tenants by name: the queue may change meanwhile."""
        return iter([s for u in reversed(Urgency) for t in self._lists(u) for s in t])

    def in_turn(self, service: Callable[[str], float]) -> Iterator[Sequence]:
        """Those to be admitted next first; the one that was given last may be removed meanwhile.

        Within a class the preempted come first, as they had their turn; then the tenant that
        has had the least service.
        """
        for urgency in reversed(Urgency):
            lists = [iter(tuple(each)) for each in self._classes[urgency].values()]
            heads = [(next(each), each) for each in lists]
            while heads:
                if len(heads) > 1:
                    heads.sort(key=lambda head: _turn(head[0], service))
                sequence, rest = heads[0]
                yield sequence
                following = next(rest, None)
                heads[:1] = [] if following is None else [(following, rest)]

    def max_own_urgency(self) -> int:
        """The highest urgency that a waiting request asked for; -1 when none waits."""
        waiting = (u for u, count in self._num_by_own_urgency.items() if count)
        return max(waiting, default=-1)

    def require_room(self, num_tokens: int, num_places: int = 0) -> None:
        """Check that a new request of `num_tokens` may wait; an empty queue takes any.

        Requests for which a place among the running is free come in with the next steps, so
        they count as waiting no more than running ones: otherwise a burst on an idle server
        would be refused in part.

        Args:
            num_places: So many more may run at once than do.

        Raises:
            OverloadedError: A limit would be passed.
        """
        if not self._num_sequences:
            return
        if self._num_sequences >= self._max_requests + num_places:
            placed = f", {num_places} of them for the next step" if num_places else ""
            raise OverloadedError.until(
                f"the queue is full: {self._num_sequences} wait{placed}, max_queued_requests is "
                f"{self._max_requests}",
                self._pace.wait_for_request(self._clock()),
            )
        excess = self.num_tokens + num_tokens - self._max_tokens
        if excess > 0:
            # An empty queue takes a request of any size.
            excess = min(excess, self.num_tokens)
            raise OverloadedError.until(
                f"the queue is full: requests with {self.num_tokens} tokens wait, this one has "
                f"{num_tokens}, max_queued_tokens is {self._max_tokens}",
                self._pace.wait_for_tokens(excess, num_tokens, self._clock()),
            )

    def insert(self, sequence: Sequence) -> None:
        """Put a sequence in its place, whatever the limits say."""
        if not self._num_sequences:
            self._pace.began(self._clock())
        self._place(sequence)
        self._num_sequences += 1
        self._num_by_own_urgency[sequence.request.scheduling.urgency] += 1
        self.num_tokens += len(sequence.token_ids)

    def admit(self, sequence: Sequence) -> None:
        """Take a sequence out, as it begins to run."""
        if sequence.num_preemptions == 0:  # others had left before
            others_wait = self._num_sequences > 1
            self._pace.left(len(sequence.token_ids), self._clock(), others_wait=others_wait)
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out; one that ends while it waits tells no pace."""
        self._take(sequence)
        self._num_sequences -= 1
        self._num_by_own_urgency[sequence.request.scheduling.urgency] -= 1
        self.num_tokens -= len(sequence.token_ids)
        if not self._num_sequences:
            self._pace.emptied()

    def filled(self) -> None:
        """Somebody waits for whom the engine, asked now, has no place."""
        self._pace.filled(self._clock())

    def move_up(self, sequence: Sequence) -> None:
        """Put a sequence into the next higher class."""
        self._take(sequence)
        sequence.urgency += 1
        self._place(sequence)

    def check(self) -> None:
        """Assert order and counts."""
        sequences = list(self)
        assert len(sequences) == self._num_sequences, "sequences are miscounted"
        num_tokens = sum(len(s.token_ids) for s in sequences)
        assert num_tokens == self.num_tokens, f"{self.num_tokens} tokens counted, {num_tokens} wait"
        for urgency in Urgency:
            for tenant, waiting in self._classes[urgency].items():
                assert waiting, f"tenant {tenant!r} is kept without a sequence"
                places = [_place(s) for s in waiting]
                assert places == sorted(set(places)), f"not in turn: {places}"
                assert all(s.urgency == urgency for s in waiting), "in the wrong class"
        own = [s.request.scheduling.urgency for s in sequences]
        counted = self._num_by_own_urgency.items()
        assert all(own.count(Urgency(u)) == count for u, count in counted), "urgencies miscounted"

    def _lists(self, urgency: int) -> list[list[Sequence]]:
        return [waiting for _, waiting in sorted(self._classes[urgency].items())]

    def _place(self, sequence: Sequence) -> None:
        tenants = self._classes[sequence.urgency]
        insort(tenants.setdefault(sequence.request.scheduling.tenant, []), sequence, key=_place)

    def _take(self, sequence: Sequence) -> None:
        tenants, tenant = self._classes[sequence.urgency], sequence.request.scheduling.tenant
        tenants[tenant].remove(sequence)
        if not tenants[tenant]:
            del tenants[tenant]


def _place(sequence: Sequence) -> tuple[bool, int]:
    return sequence.num_preemptions == 0, sequence.arrival


def _turn(sequence: Sequence, service: Callable[[str], float]) -> tuple[bool, float, int]:
    is_new, arrival = _place(sequence)
    return is_new, service(sequence.request.scheduling.tenant) if is_new else 0.0, arrival
