"""BoundedConnection: one HTTP/1.1 connection that cannot be held open by doing nothing.

Owns the time limits of a connection, which uvicorn has none of: until a request that was begun has
come, and while the reader takes nothing of an answer. Header sizes are the parser's, see
`serve.py`, chunks `chunk_limit.py`'s, bodies `body_limit.py`'s.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from server.http.chunk_limit import ChunkLimit

logger = logging.getLogger(__name__)

# From the opened connection to the end of the first request's headers, and from the first byte of a
# later one, for which the keep-alive limit waits; a phone in a tunnel takes seconds.
HEADERS_TIMEOUT_S = 20.0


class BoundedConnection(H11Protocol):
    """A connection with time limits.

    Attributes:
        slow_reader_timeout_s: A connection whose reader takes nothing for so long is cut off.
        headers_timeout_s: A connection without a whole request after so long is closed.

    Both are set on a subclass, since uvicorn makes the objects.
    """

    slow_reader_timeout_s: float
    headers_timeout_s: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        size = self.config.h11_max_incomplete_event_size
        assert size is not None, "serve.py sets it"
        self._parser = self.conn = ChunkLimit(size)
        self._headers_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._start_headers_timer()

    def data_received(self, data: bytes) -> None:
        """Read on."""
        super().data_received(data)
        # What comes behind an answer is the beginning of a request, or the rest of a body that
        # nobody waits for; both have ended uvicorn's keep-alive limit.
        if self.cycle is None or self.cycle.response_complete:
            self._start_headers_timer()
        else:
            self._stop_headers_timer()

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser did, and say why where it knows."""
        super().send_400_response(self._parser.complaint or msg)

    def pause_writing(self) -> None:
        """The reader is behind by what the buffers hold."""
        super().pause_writing()
        if self._reader_timer is None:
            self._reader_timer = self.loop.call_later(self.slow_reader_timeout_s, self._cut_off)

    def resume_writing(self) -> None:
        """The reader has taken something."""
        self._stop_reader_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """End; the request, if there is one, is aborted."""
        self._stop_headers_timer()
        self._stop_reader_timer()
        super().connection_lost(exc)

    def _start_headers_timer(self) -> None:
        if self._headers_timer is None:
            limit = self.headers_timeout_s
            self._headers_timer = self.loop.call_later(limit, self._give_up_headers)

    def _stop_headers_timer(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    def _stop_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _give_up_headers(self) -> None:
        logger.info("connection closed: no request within %g s", self.headers_timeout_s)
        self.transport.abort()

    def _cut_off(self) -> None:
        """Drop what is buffered as well, as it would wait for the reader for ever."""
        logger.info(
            "connection closed: the reader took nothing for %g s, so its request was aborted",
            self.slow_reader_timeout_s,
        )
        self.transport.abort()


def bounded_connection(
    slow_reader_timeout_s: float, headers_timeout_s: float = HEADERS_TIMEOUT_S
) -> type[BoundedConnection]:
    """The class to give to uvicorn, with these limits."""
    limits = {
        "slow_reader_timeout_s": slow_reader_timeout_s,
        "headers_timeout_s": headers_timeout_s,
    }
    return type("BoundedConnection", (BoundedConnection,), limits)
