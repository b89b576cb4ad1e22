"""HTTP connections are not held open by doing nothing, and take no more than their bounds."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.exceptions import HTTPException
from uvicorn.server import ServerState

from server.grpc_server import MAX_HEADER_BYTES
from server.http.body_limit import BodyLimit
from server.http.chunk_limit import MAX_CHUNKS
from server.http.connection import BoundedConnection, bounded_connection
from server.loop_thread import LoopThread
from server.text import TextDelta, TextRequest
from tests.server.wire_fakes import FakeGenerator, FakeServer, settings_of

CHUNK = "x" * 65536


@dataclass
class EndlessGenerator(FakeGenerator):
    """Writes as fast as it is read."""

    num_chunks: int = 0

    async def stream(self, request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        try:
            while True:
                self.num_chunks += 1
                yield TextDelta(0, CHUNK, (7,))
        finally:
            self.num_closed += 1


@contextmanager
def connected(port: int, *lines: str) -> Iterator[socket.socket]:
    """A connection that has sent some lines and reads only when the test does."""
    with socket.socket() as connection:
        # Small, so that the server notices soon.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", port))
        connection.sendall("\r\n".join(lines).encode())
        yield connection


def until_closed(connection: socket.socket) -> bytes:
    """All that comes until the server closes; a reset is an end as well."""
    found = b""
    try:
        while data := connection.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


STREAM = '{"prompt": "x", "stream": true}'
POST = ("POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json")


def test_a_stalled_reader_of_events_is_cut_off_and_its_request_ends() -> None:
    generator = EndlessGenerator()
    settings = settings_of(http_port=0, slow_reader_timeout_s=0.3)
    with FakeServer(settings, loaded=False) as server:
        server.call(lambda: server.lifecycle.begin_serving(generator))
        length = f"Content-Length: {len(STREAM)}"
        with connected(server.http_port, *POST, length, "", STREAM) as connection:
            server.await_that(lambda: generator.num_closed == 1)
            assert server.lifecycle.num_running == 0
            assert b"200 OK" in until_closed(connection)
        # The buffers of two sockets, not all that could have been written.
        assert generator.num_chunks < 1000


@dataclass
class Bare:
    """A server of nothing but connections.

    Attributes:
        made: Its connections, in the order of their clients.
        paused: Set when the buffers of one are full.
    """

    loop: LoopThread
    port: int = 0
    made: list[BoundedConnection] = field(default_factory=list)
    paused: threading.Event = field(default_factory=threading.Event)


@contextmanager
def bare_server(app: Any, headers_timeout_s: float = 60, reader_timeout_s: float = 60) -> Any:
    """A `Bare` over an app."""
    bare = Bare(LoopThread())

    class Watched(bounded_connection(reader_timeout_s, headers_timeout_s)):  # type: ignore[misc]
        def pause_writing(self) -> None:
            super().pause_writing()
            bare.paused.set()

    config = uvicorn.Config(
        app,
        http=Watched,
        ws="none",
        log_config=None,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )

    async def start() -> asyncio.Server:
        config.load()
        state = ServerState()

        def connection() -> asyncio.Protocol:
            bare.made.append(Watched(config, state, {}))
            return bare.made[-1]

        return await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)

    server = bare.loop.run(start())
    bare.port = server.sockets[0].getsockname()[1]
    yield bare

    async def stop() -> None:
        server.close()
        await server.wait_closed()

    bare.loop.run(stop())
    bare.loop.close()


async def says_nothing(scope, receive, send):  # type: ignore[no-untyped-def]
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


GET = ("GET / HTTP/1.1", "Host: x", "Connection: close", "", "")


def test_a_reader_that_catches_up_gets_all_of_it() -> None:
    async def app(scope, receive, send):  # type: ignore[no-untyped-def]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(200):
            await send({"type": "http.response.body", "body": CHUNK.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"end"})

    with bare_server(app) as bare, connected(bare.port, *GET) as connection:
        assert bare.paused.wait(20), "all of it went into the buffers"
        found = until_closed(connection)
    assert found.endswith(b"end\r\n0\r\n\r\n")
    assert found.count(b"x") >= 200 * len(CHUNK)


@pytest.mark.parametrize("catches_up", [True, False])
def test_only_who_takes_nothing_is_cut_off(catches_up: bool) -> None:
    """Not who waits for what is not written yet."""

    async def fall_behind() -> None:
        (connection,) = bare.made
        connection.pause_writing()
        if catches_up:
            connection.resume_writing()
        # Timers of one loop fire in the order of their times, so the limit's would have by then.
        await asyncio.sleep(0.02)

    with bare_server(says_nothing, reader_timeout_s=0.01) as bare, connected(bare.port) as reader:
        bare.loop.run(until(lambda: bare.made))
        bare.loop.run(fall_behind())
        with suppress(OSError):
            reader.sendall("\r\n".join(GET).encode())
        assert until_closed(reader).startswith(b"HTTP/1.1 204") is catches_up


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("line", ["", "GET / HTTP/1.1\r\nX-Slow: "])
def test_a_connection_without_a_request_is_closed(line: str) -> None:
    with (
        bare_server(says_nothing, headers_timeout_s=0.2) as bare,
        connected(bare.port, line) as connection,
    ):
        assert until_closed(connection) == b""


@pytest.mark.parametrize("first", ["GET / HTTP/1.1", "POST / HTTP/1.1\r\nContent-Length: 9"])
def test_a_connection_that_begins_again_and_goes_no_further_is_closed(first: str) -> None:
    """A second request that never ends, or a body that was answered before it came."""
    with (
        bare_server(says_nothing, headers_timeout_s=0.2) as bare,
        connected(bare.port, first, "Host: x", "", "") as connection,
    ):
        assert connection.recv(65536).startswith(b"HTTP/1.1 204")
        connection.sendall(b"G")
        assert until_closed(connection) == b""


def test_a_connection_with_a_request_is_not_closed() -> None:
    async def takes_its_time(scope, receive, send):  # type: ignore[no-untyped-def]
        # Later in this loop than the limit, whose timer would have fired before.
        await asyncio.sleep(0.3)
        await says_nothing(scope, receive, send)

    with (
        bare_server(takes_its_time, headers_timeout_s=0.2) as bare,
        connected(bare.port, *GET) as connection,
    ):
        assert until_closed(connection).startswith(b"HTTP/1.1 204")


def test_headers_are_bounded() -> None:
    with FakeServer(settings_of(http_port=0)) as server, httpx.Client(trust_env=False) as client:
        url = f"{server.url}/health"
        fits = client.get(url, headers={"x": "a" * (MAX_HEADER_BYTES - 1024)})
        assert fits.status_code == 200
        assert client.get(url, headers={"x": "a" * MAX_HEADER_BYTES}).status_code == 431
        # Closed while the client still sends, so whether it sees the status is a matter of luck.
        with suppress(httpx.TransportError):
            assert client.get(url, headers={"x": "a" * (4 << 20)}).status_code == 400
        assert client.get(url, params={"x": "a" * MAX_HEADER_BYTES}).status_code == 431
        assert client.get(url).status_code == 200


def test_a_body_that_takes_too_long_is_refused() -> None:
    sent: list[dict[str, object]] = []

    async def app(scope, receive, send):  # type: ignore[no-untyped-def]
        while (await receive())["more_body"]:
            pass

    async def run() -> None:
        async def receive():  # type: ignore[no-untyped-def]
            # A byte now and then, for ever.
            await asyncio.sleep(0.01)
            return {"type": "http.request", "body": b"x", "more_body": True}

        async def send(message):  # type: ignore[no-untyped-def]
            sent.append(message)

        limit = BodyLimit(app, max_bytes=1 << 30, read_timeout_s=0.1)
        with pytest.raises(HTTPException) as caught:
            await limit({"type": "http", "headers": []}, receive, send)
        assert caught.value.status_code == 408

    loop = LoopThread()
    loop.run(run())
    loop.close()


@pytest.mark.parametrize("num_chunks", [MAX_CHUNKS, MAX_CHUNKS + 1])
def test_a_body_in_a_great_many_chunks_is_refused(num_chunks: int) -> None:
    """Each takes a while of the loop that sends everybody's tokens."""
    body = b'e\r\n{"prompt":"x"}\r\n' + b"1\r\n \r\n" * (num_chunks - 1) + b"0\r\n\r\n"
    head = (*POST, "Connection: close", "Transfer-Encoding: chunked", "", "")
    with FakeServer(settings_of(http_port=0)) as server, connected(server.http_port, *head) as link:
        with suppress(ConnectionError):
            link.sendall(body)
        reply = until_closed(link)
    if num_chunks <= MAX_CHUNKS:
        assert reply.startswith(b"HTTP/1.1 200 OK")
    else:
        assert reply.startswith(b"HTTP/1.1 400 ")
        assert b"the body has more than 16,384 chunks; send it in larger ones" in reply


def test_a_body_with_two_lengths_is_refused_and_nothing_behind_it_is_read() -> None:
    """A proxy that goes by the other one would take the rest for another client's request."""
    head = (*POST, "Content-Length: 5", "Transfer-Encoding: chunked", "", "")
    behind = b"0\r\n\r\nGET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    with FakeServer(settings_of(http_port=0)) as server, connected(server.http_port, *head) as link:
        link.sendall(behind)
        reply = until_closed(link)
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert b"both content-length and transfer-encoding" in reply
    assert reply.count(b"HTTP/1.1 ") == 1


def test_chunks_count_for_each_body() -> None:
    half = MAX_CHUNKS // 2 + 1
    body = b'e\r\n{"prompt":"x"}\r\n' + b"1\r\n \r\n" * half + b"0\r\n\r\n"
    head = "\r\n".join((*POST, "Transfer-Encoding: chunked", "", "")).encode()
    with FakeServer(settings_of(http_port=0)) as server, connected(server.http_port) as link:
        for _ in range(2):
            link.sendall(head + body)
            assert link.recv(12) == b"HTTP/1.1 200"
            while not link.recv(65536).endswith(b"}"):
                pass
