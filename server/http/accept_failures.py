"""AcceptFailures: what the event loop says of connections that it cannot take, once in a while.

Without a free file descriptor asyncio tries again for as long as connections wait, and logs each
failure with its traceback: with uvicorn's own backlog megabytes a second.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

logger = logging.getLogger(__name__)

# Seconds between two lines of the log; often enough to be seen beside others.
PAUSE_S = 10.0
_MESSAGE = "socket.accept()"


class AcceptFailures:
    """A loop's exception handler; all other errors go to asyncio's own."""

    def __init__(self) -> None:
        self._silent_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """See `loop.set_exception_handler`."""
        if not context["message"].startswith(_MESSAGE):
            loop.default_exception_handler(context)
        elif loop.time() >= self._silent_until:
            self._silent_until = loop.time() + PAUSE_S
            logger.error(
                "HTTP connections wait, since none can be opened: %s; raise ulimit -n, or let a "
                "proxy bound them",
                context["exception"],
            )
