"""Watchdog: calls somebody when what was due has not come.

Owns a thread that sleeps until the deadline; nothing is polled. Setting a later deadline wakes
nobody, so it costs a lock once for each step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

# A machine that slept, or a process that was stopped, finds every deadline passed when it wakes;
# what has arrived meanwhile gets as long to be read.
GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class Due:
    """Something that is to come.

    Attributes:
        timeout_s: From `Watchdog.expect` to the expiry.
        failing: What it means when it does not come, as the rest of a sentence about who owes it.
    """

    timeout_s: float
    failing: str


class Watchdog:
    """One deadline, watched from `start` to `close`; all calls from any thread."""

    def __init__(self, on_expiry: Callable[[Due], None]) -> None:
        """Prepare.

        Args:
            on_expiry: Called in the watchdog's thread with what did not come, once for each
                `expect` at most.
        """
        self._due: Due | None = None
        self._on_expiry = on_expiry
        self._deadline: float | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    @property
    def is_expecting(self) -> bool:
        """Whether there is a deadline."""
        return self._deadline is not None

    def expect(self, due: Due) -> None:
        """Something is due from now on; replaces what was due before."""
        with self._changed:
            deadline = time.monotonic() + due.timeout_s
            must_wake = self._deadline is None or deadline < self._deadline
            self._due, self._deadline = due, deadline
            if must_wake:
                self._changed.notify()

    def relax(self) -> None:
        """Nothing is due."""
        with self._changed:
            self._deadline = None

    def close(self) -> None:
        """End the thread; not from `on_expiry`."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _watch(self) -> None:
        while (due := self._wait_for_expiry()) is not None:
            self._on_expiry(due)

    def _wait_for_expiry(self) -> Due | None:
        """What did not come in time; None when closed."""
        with self._changed:
            while not self._closed:
                due, deadline = self._due, self._deadline
                if due is None or deadline is None:
                    self._changed.wait()
                elif (left_s := deadline - time.monotonic()) > 0:
                    self._changed.wait(left_s)
                elif not self._changed.wait_for(
                    self._is_changed_since(deadline), min(GRACE_S, due.timeout_s)
                ):
                    self._deadline = None
                    return due
            return None

    def _is_changed_since(self, deadline: float) -> Callable[[], bool]:
        return lambda: self._closed or self._deadline != deadline
