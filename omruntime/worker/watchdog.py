"""Watchdog: calls somebody when what was due has not come.

Owns a thread that sleeps until the deadline; nothing is polled. Setting a later deadline wakes
nobody, so it costs a lock once for each step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# A machine that slept, or a process that was stopped, finds every deadline passed when it wakes;
# what has arrived meanwhile gets as long to be read.
GRACE_S = 1.0


class Watchdog:
    """One deadline, watched from `start` to `close`; all calls from any thread."""

    def __init__(self, timeout_s: float, on_expiry: Callable[[], None]) -> None:
        """Prepare.

        Args:
            timeout_s: From `expect` to the expiry.
            on_expiry: Called in the watchdog's thread, once for each `expect` at most.
        """
        self._timeout_s = timeout_s
        self._grace_s = min(GRACE_S, timeout_s)
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

    def expect(self) -> None:
        """Something is due within the timeout from now; replaces an earlier deadline."""
        with self._changed:
            must_wake = self._deadline is None
            self._deadline = time.monotonic() + self._timeout_s
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
        while self._wait_for_expiry():
            self._on_expiry()

    def _wait_for_expiry(self) -> bool:
        """Return True at an expiry, False when closed."""
        with self._changed:
            while not self._closed:
                deadline = self._deadline
                if deadline is None:
                    self._changed.wait()
                elif (left_s := deadline - time.monotonic()) > 0:
                    self._changed.wait(left_s)
                elif not self._changed.wait_for(self._is_changed_since(deadline), self._grace_s):
                    self._deadline = None
                    return True
            return False

    def _is_changed_since(self, deadline: float) -> Callable[[], bool]:
        return lambda: self._closed or self._deadline != deadline
