"""What was due and did not come is noticed; all else is left alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from omruntime.worker.watchdog import Watchdog

LIMIT_S = 60.0


class Expiries:
    """Counts, and lets a test wait."""

    def __init__(self) -> None:
        self.num = threading.Semaphore(0)

    def __call__(self) -> None:
        self.num.release()

    def wait(self) -> bool:
        return self.num.acquire(timeout=LIMIT_S)


@pytest.fixture
def expiries() -> Expiries:
    return Expiries()


@pytest.fixture
def quick(expiries: Expiries) -> Iterator[Watchdog]:
    watchdog = Watchdog(0.02, expiries)
    watchdog.start()
    yield watchdog
    watchdog.close()


@pytest.fixture
def slow(expiries: Expiries) -> Iterator[Watchdog]:
    """Expires in no test."""
    watchdog = Watchdog(10_000.0, expiries)
    watchdog.start()
    yield watchdog
    watchdog.close()


def test_what_does_not_come_expires_once(quick: Watchdog, expiries: Expiries) -> None:
    quick.expect()
    assert expiries.wait()
    assert not quick.is_expecting
    quick.expect()
    assert expiries.wait()
    assert not expiries.num.acquire(timeout=0.2)


def test_what_came_does_not_expire(quick: Watchdog, expiries: Expiries) -> None:
    quick.expect()
    quick.relax()
    assert not quick.is_expecting
    assert not expiries.num.acquire(timeout=0.2)


def test_a_later_deadline_replaces_an_earlier_one(slow: Watchdog, expiries: Expiries) -> None:
    for _ in range(3):
        slow.expect()
        assert slow.is_expecting
    slow.relax()
    slow.expect()
    assert not expiries.num.acquire(blocking=False)


def test_a_deadline_that_is_renewed_in_the_grace_does_not_expire() -> None:
    """What arrived while the machine slept is read before anybody is condemned."""
    expiries = Expiries()
    watchdog = Watchdog(0.5, expiries)
    watchdog.start()
    watchdog.expect()
    # As after a sleep: the deadline has long passed when the thread wakes.
    with watchdog._changed:
        watchdog._deadline = 0.0
        watchdog._changed.notify()
    watchdog.relax()
    assert not expiries.num.acquire(timeout=1.5)
    watchdog.close()


def test_closing_ends_a_wait(slow: Watchdog) -> None:
    slow.expect()  # the fixture's end joins the thread
