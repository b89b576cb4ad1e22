"""What was due and did not come is noticed; all else is left alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from omruntime.worker.watchdog import Due, Watchdog

LIMIT_S = 60.0
SOON, LATE = Due(0.02, "came not soon"), Due(10_000.0, "came not late")


class Expiries:
    """Counts, and lets a test wait."""

    def __init__(self) -> None:
        self.num = threading.Semaphore(0)
        self.last: Due | None = None

    def __call__(self, due: Due) -> None:
        self.last = due
        self.num.release()

    def wait(self) -> bool:
        return self.num.acquire(timeout=LIMIT_S)


@pytest.fixture
def expiries() -> Expiries:
    return Expiries()


@pytest.fixture
def watchdog(expiries: Expiries) -> Iterator[Watchdog]:
    watchdog = Watchdog(expiries)
    watchdog.start()
    yield watchdog
    watchdog.close()


def test_what_does_not_come_expires_once(watchdog: Watchdog, expiries: Expiries) -> None:
    watchdog.expect(SOON)
    assert expiries.wait()
    assert not watchdog.is_expecting
    watchdog.expect(SOON)
    assert expiries.wait()
    assert not expiries.num.acquire(timeout=0.2)


def test_what_came_does_not_expire(watchdog: Watchdog, expiries: Expiries) -> None:
    watchdog.expect(SOON)
    watchdog.relax()
    assert not watchdog.is_expecting
    assert not expiries.num.acquire(timeout=0.2)


def test_a_later_deadline_replaces_an_earlier_one(watchdog: Watchdog, expiries: Expiries) -> None:
    for _ in range(3):
        watchdog.expect(LATE)
        assert watchdog.is_expecting
    watchdog.relax()
    watchdog.expect(LATE)
    assert not expiries.num.acquire(blocking=False)


def test_a_deadline_that_is_renewed_in_the_grace_does_not_expire() -> None:
    """What arrived while the machine slept is read before anybody is condemned."""
    expiries = Expiries()
    watchdog = Watchdog(expiries)
    watchdog.start()
    watchdog.expect(Due(0.5, ""))
    # As after a sleep: the deadline has long passed when the thread wakes.
    with watchdog._changed:
        watchdog._deadline = 0.0
        watchdog._changed.notify()
    watchdog.relax()
    assert not expiries.num.acquire(timeout=1.5)
    watchdog.close()


def test_an_earlier_deadline_replaces_a_later_one(watchdog: Watchdog, expiries: Expiries) -> None:
    watchdog.expect(LATE)
    watchdog.expect(SOON)
    assert expiries.wait()
    assert expiries.last is SOON


def test_closing_ends_a_wait(watchdog: Watchdog) -> None:
    watchdog.expect(LATE)  # the fixture's end joins the thread
