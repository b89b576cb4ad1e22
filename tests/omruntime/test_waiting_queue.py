"""The queue keeps the order of arrival and refuses beyond its limits."""

from __future__ import annotations

import pytest

from omruntime.errors import OverloadedError
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import Request, Sequence
from omruntime.waiting_queue import WaitingQueue


def waiter(arrival: int, num_tokens: int = 1) -> Sequence:
    request = Request(f"r{arrival}", (0,) * num_tokens, SamplingParams())
    return Sequence.of(request, arrival)


def test_a_returning_sequence_takes_its_place_by_arrival() -> None:
    queue = WaitingQueue(9, 99)
    for arrival in (2, 5, 3, 1):
        queue.insert(waiter(arrival))
    assert [s.arrival for s in queue] == [1, 2, 3, 5]
    queue.check()


def test_iteration_stands_while_the_queue_changes() -> None:
    queue = WaitingQueue(9, 99)
    for arrival in range(4):
        queue.insert(waiter(arrival))
    for sequence in queue:
        queue.remove(sequence)
    assert (len(queue), queue.num_tokens) == (0, 0)


def test_one_request_too_many_is_refused() -> None:
    queue = WaitingQueue(max_requests=2, max_tokens=99)
    for arrival in range(2):
        queue.require_room(1)
        queue.insert(waiter(arrival))
    with pytest.raises(OverloadedError, match=r"2 requests are waiting.*max_queued_requests is 2"):
        queue.require_room(1)


def test_tokens_beyond_the_limit_are_refused_and_the_limit_itself_is_not() -> None:
    queue = WaitingQueue(9, max_tokens=10)
    queue.insert(waiter(1, num_tokens=6))
    queue.require_room(4)
    with pytest.raises(OverloadedError, match=r"6 tokens are waiting and the request has 5"):
        queue.require_room(5)


def test_empty_queue_takes_a_request_of_any_length() -> None:
    """Otherwise "retry later" would never come true."""
    WaitingQueue(1, max_tokens=10).require_room(11)
