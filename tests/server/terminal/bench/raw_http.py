"""A server on a real port that answers HTTP with bytes as a test wrote them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class RawServer:
    """Attributes:
    replies: What each request gets, piece by piece; an empty piece closes the connection.
    bodies: Of the requests.
    """

    replies: list[Sequence[bytes]]
    url: str = ""
    num_connections: int = 0
    bodies: list[bytes] = field(default_factory=list)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                self.bodies.append(await reader.readexactly(length))
                for piece in self.replies.pop(0):
                    if not piece:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def raw_server(*replies: Sequence[bytes]) -> AsyncIterator[RawServer]:
    """Serve on loopback inside of the `with`."""
    raw = RawServer(list(replies))
    server = await asyncio.start_server(raw.answer, "127.0.0.1", 0)
    raw.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield raw
    finally:
        server.close()


def with_length(body: bytes, status: str = "200 OK", headers: str = "") -> list[bytes]:
    return [f"HTTP/1.1 {status}\r\n{headers}content-length: {len(body)}\r\n\r\n".encode(), body]


def chunked(*chunks: bytes) -> list[bytes]:
    """A streamed reply; trailers come behind it."""
    pieces = [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"]
    pieces += [b"%x;ext=1\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks]
    return [*pieces, b"0\r\nx-trailer: 1\r\n\r\n"]
