"""The queue keeps the order of arrival and refuses beyond its limits."""

from __future__ import annotations

import pytest

from omruntime.errors import OverloadedError
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.turn import Scheduling, Urgency
from omruntime.scheduling.waiting_queue import WaitingQueue
from omruntime.sequence import Request, Sequence


def waiter(
    arrival: int, num_tokens: int = 1, urgency: Urgency = Urgency.NORMAL, tenant: str = ""
) -> Sequence:
    wishes = Scheduling(urgency=urgency, tenant=tenant)
    request = Request(f"r{arrival}", (0,) * num_tokens, SamplingParams(), scheduling=wishes)
    return Sequence.of(request, arrival)


def arrivals_in_turn(queue: WaitingQueue, service: dict[str, float] | None = None) -> list[int]:
    queue.check()
    return [s.arrival for s in queue.in_turn((service or {}).get)]  # type: ignore[arg-type]


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
    with pytest.raises(OverloadedError, match=r"2 wait, max_queued_requests is 2; retry after \d"):
        queue.require_room(1)


def test_tokens_beyond_the_limit_are_refused_and_the_limit_itself_is_not() -> None:
    queue = WaitingQueue(9, max_tokens=10)
    queue.insert(waiter(1, num_tokens=6))
    queue.require_room(4)
    with pytest.raises(OverloadedError, match=r"6 tokens wait, this one has 5.*retry after \d"):
        queue.require_room(5)


def test_empty_queue_takes_a_request_of_any_length() -> None:
    """Otherwise "retry after" would never come true."""
    WaitingQueue(1, max_tokens=10).require_room(11)


# Turns


def test_urgency_comes_first_then_the_preempted_then_the_least_served_tenant() -> None:
    queue = WaitingQueue(9, 99)
    preempted = waiter(6, tenant="much")
    preempted.num_preemptions = 1
    queue.insert(waiter(1, urgency=Urgency.LOW, tenant="little"))
    queue.insert(waiter(2, tenant="much"))
    queue.insert(waiter(3, tenant="little"))
    queue.insert(waiter(4, tenant="little"))
    queue.insert(waiter(5, urgency=Urgency.HIGH, tenant="much"))
    queue.insert(preempted)
    service = {"much": 9.0, "little": 1.0}
    assert arrivals_in_turn(queue, service) == [5, 6, 3, 4, 2, 1]
    service["little"] = 10.0
    assert arrivals_in_turn(queue, service) == [5, 6, 2, 3, 4, 1]


def test_service_counts_as_it_grows_within_one_pass() -> None:
    queue = WaitingQueue(9, 99)
    for arrival in range(4):
        queue.insert(waiter(arrival, tenant="a" if arrival < 2 else "b"))
    service = {"a": 0.0, "b": 1.0}
    order = []
    for sequence in queue.in_turn(service.__getitem__):
        order.append(sequence.arrival)
        service[sequence.request.scheduling.tenant] += 5.0
        queue.remove(sequence)
    assert order == [0, 2, 1, 3]
    queue.check()


def test_moving_up_gives_a_better_turn_and_keeps_what_was_asked() -> None:
    queue = WaitingQueue(9, 99)
    low = waiter(1, urgency=Urgency.LOW)
    queue.insert(low)
    queue.insert(waiter(2))
    assert arrivals_in_turn(queue) == [2, 1]
    queue.move_up(low)
    assert arrivals_in_turn(queue) == [1, 2]
    assert (low.urgency, queue.max_own_urgency()) == (Urgency.NORMAL, Urgency.NORMAL)
    queue.check()
