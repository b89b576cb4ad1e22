"""What refused callers are told follows from how fast the queue moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from omruntime.errors import OverloadedError
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.retry_pace import LEAST_S, MOST_S, UNKNOWN_S, RetryPace
from omruntime.scheduling.waiting_queue import WaitingQueue
from omruntime.sequence import Request, Sequence


def pace_of(num_left: int, every_s: float, num_tokens: int = 10) -> RetryPace:
    """After `num_left` departures, the last at time 100."""
    pace = RetryPace()
    pace.began(100.0 - num_left * every_s)
    pace.filled(100.0 - num_left * every_s)
    for number in range(num_left):
        pace.left(num_tokens, 100.0 - (num_left - 1 - number) * every_s, others_wait=True)
    return pace


@pytest.mark.parametrize("every_s", [0.5, 2.0])
def test_a_place_takes_what_places_took(every_s: float) -> None:
    assert pace_of(5, every_s).wait_for_request(100.0) == pytest.approx(every_s)


def test_those_who_are_refused_together_are_told_one_time_after_the_other() -> None:
    pace = pace_of(5, 2.0)
    told = [pace.wait_for_request(100.0) for _ in range(3)]
    assert told == pytest.approx([2.0, 4.0, 6.0])
    # When those times have passed, the next one waits for one place again. Nothing has left
    # since, so places take longer by now.
    assert pace.wait_for_request(108.0) == pytest.approx((5 * 2.0 + 8.0) / 5)


def test_tokens_wait_for_tokens() -> None:
    pace = pace_of(5, 2.0, num_tokens=10)
    assert pace.wait_for_tokens(excess=5, own=500, now=100.0) == pytest.approx(1.0)
    assert pace.wait_for_tokens(excess=5, own=20, now=100.0) == pytest.approx(5.0)


def test_a_queue_that_stands_still_tells_longer_times() -> None:
    assert pace_of(5, 1.0).wait_for_request(115.0) == pytest.approx(4.0)


def test_an_idle_time_says_nothing_and_ends_all_promises() -> None:
    pace = pace_of(4, 2.0)
    assert [pace.wait_for_request(100.0) for _ in range(5)][-1] == pytest.approx(10.0)
    pace.left(10, 102.0, others_wait=False)
    pace.emptied()
    # Requests that are admitted at once, far apart, do not slow the pace down, nor speed it up.
    for second in range(20):
        pace.began(1000.0 + second)
        pace.filled(1000.0 + second)
        pace.left(10, 1000.01 + second, others_wait=False)
        pace.emptied()
    pace.began(2000.0)
    assert pace.wait_for_request(2000.0) == pytest.approx(2.0)


def test_a_burst_that_fills_an_idle_engine_tells_no_pace() -> None:
    pace = RetryPace()
    pace.began(100.0)
    for number in range(32):
        pace.left(10, 100.0 + number * 1e-4, others_wait=True)
    assert pace.wait_for_request(100.1) == UNKNOWN_S
    pace.filled(100.1)
    assert pace.wait_for_request(101.0) == UNKNOWN_S
    # Every later pass over the queue finds the same waiter; it waits since the first.
    pace.filled(103.0)
    pace.left(10, 104.1, others_wait=True)
    assert pace.wait_for_request(104.1) == pytest.approx(4.0)


def test_nothing_is_known_before_the_queue_has_moved() -> None:
    pace = pace_of(0, 1.0)
    assert pace.wait_for_request(101.0) == UNKNOWN_S
    assert pace.wait_for_tokens(3, 3, 101.0) == UNKNOWN_S


def test_times_are_bounded() -> None:
    assert pace_of(5, 1e-6).wait_for_request(100.0) == LEAST_S
    slow = pace_of(5, 1000.0)
    assert [slow.wait_for_request(100.0) for _ in range(3)] == [MOST_S] * 3
    # What was promised never lies so far ahead that a queue that moves again is not believed.
    assert slow.wait_for_request(100.0 + MOST_S) <= MOST_S


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def refused(call: Callable[[], None]) -> float | None:
    with pytest.raises(OverloadedError) as caught:
        call()
    return caught.value.retry_after_s


def test_the_queue_tells_its_own_pace() -> None:
    clock = Clock()
    queue = WaitingQueue(max_requests=2, max_tokens=100, clock=clock)

    def waiter(arrival: int, num_tokens: int) -> Sequence:
        return Sequence.of(Request(f"r{arrival}", (0,) * num_tokens, SamplingParams()), arrival)

    for arrival in range(4):
        sequence = waiter(arrival, 10)
        queue.insert(sequence)
        queue.filled()
        clock.now += 3.0
        queue.admit(sequence)
    again = waiter(4, 10)
    again.num_preemptions = 1
    queue.insert(again)
    queue.admit(again)
    clock.now += 500.0
    given_up = [waiter(arrival, 10) for arrival in range(100, 200)]
    for sequence in given_up:
        queue.insert(sequence)
    queue.filled()
    for sequence in given_up:
        queue.remove(sequence)
    queue.insert(waiter(5, 40))
    assert refused(lambda: queue.require_room(80)) == pytest.approx(20 * 9.0 / 30)
    queue.insert(waiter(6, 40))
    assert refused(lambda: queue.require_room(1)) == pytest.approx(20 * 9.0 / 30 + 3.0)
