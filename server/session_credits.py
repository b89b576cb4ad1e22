"""Credits: how many more events of one request its client takes."""

from __future__ import annotations

import asyncio


class Credits:
    """Counted by the session that reads frames, waited for by the task that sends events.

    Attributes:
        closed: Whether nobody takes events any more.
    """

    def __init__(self, num_events: int | None) -> None:
        """Begin with so many; None: as many as there are."""
        self.closed = False
        self._num_left = num_events
        self._changed = asyncio.Event()

    def grant(self, num_events: int) -> None:
        """Add some, at least 1."""
        if self._num_left is not None:
            self._num_left += num_events
            self._changed.set()

    def close(self) -> None:
        """End all waiting; nothing can be taken from now on."""
        self.closed = True
        self._changed.set()

    async def take(self, timeout_s: float) -> bool:
        """Wait for a credit and use it up; False once closed.

        Raises:
            TimeoutError: None came in time.
        """
        async with asyncio.timeout(timeout_s):
            while not self.closed and self._num_left == 0:
                self._changed.clear()
                await self._changed.wait()
        if self.closed:
            return False
        if self._num_left is not None:
            self._num_left -= 1
        return True
