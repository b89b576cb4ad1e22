"""OwnerProcess: which process opened something that does not survive a fork.

A forked child has the object but none of the threads behind it, so a call would wait for ever.
"""

from __future__ import annotations

import os

from omruntime.errors import RequestError


class OwnerProcess:
    """Remembers the process that it was made in."""

    def __init__(self, what: str) -> None:
        """Remember this process.

        Args:
            what: Is owned, for the message; such as "this LLM".
        """
        self._what = what
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is that process."""
        return os.getpid() == self._pid

    def require(self) -> None:
        """Refuse another process with RequestError."""
        if not self.is_here:
            raise RequestError(
                f"{self._what} was opened by process {self._pid} and this is its forked child "
                f"{os.getpid()}, which has none of its threads; open one here, or start child "
                f"processes with the method spawn"
            )
