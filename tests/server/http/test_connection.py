"""HTTP connections are not held open by doing nothing, and take no more than their bounds."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import httpx
import pytest
import uvicorn
from starlette.exceptions import HTTPException
from uvicorn.server import ServerState

from server.grpc_server import MAX_HEADER_BYTES
from server.http.body_limit import BodyLimit
from server.http.connection import bounded_connection
from server.loop_thread import LoopThread
from server.text import TextDelta, TextRequest
from tests.server.wire_fakes import FakeGenerator, FakeServer, end, settings_of

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


@dataclass
class PausingGenerator(FakeGenerator):
    """Writes more than the buffers hold, then nothing until `go`."""

    NUM_CHUNKS = 200

    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def stream(self, request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        for _ in range(self.NUM_CHUNKS):
            yield TextDelta(0, CHUNK, (7,))
        await self.go.wait()
        yield end()


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


def test_a_reader_that_catches_up_gets_all_of_it() -> None:
    """Only who takes nothing is cut off, not who waits for what is not written yet."""
    generator = PausingGenerator()
    settings = settings_of(http_port=0, slow_reader_timeout_s=1.0)
    with FakeServer(settings, loaded=False) as server:
        server.call(lambda: server.lifecycle.begin_serving(generator))
        length = f"Content-Length: {len(STREAM)}"
        lines = (*POST, length, "Connection: close", "", STREAM)
        with connected(server.http_port, *lines) as connection:
            # Time to fill the buffers; with less the test would prove less, not fail.
            server.run(asyncio.sleep(0.3))
            num_bytes = 0
            while num_bytes < generator.NUM_CHUNKS * len(CHUNK):
                num_bytes += len(data := connection.recv(65536))
                assert data, "cut off"
            # Longer than the limit, which must not count this.
            server.run(asyncio.sleep(1.3))
            server.call(generator.go.set)
            assert until_closed(connection).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@contextmanager
def bare_server(headers_timeout_s: float) -> Iterator[int]:
    """The port of a server of nothing but connections, which takes its time to answer."""

    async def app(scope, receive, send):  # type: ignore[no-untyped-def]
        await asyncio.sleep(3 * headers_timeout_s)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    loop = LoopThread()
    protocol = bounded_connection(60.0, headers_timeout_s)
    config = uvicorn.Config(app, http=protocol, ws="none", log_config=None)  # type: ignore[arg-type]

    async def start():  # type: ignore[no-untyped-def]
        config.load()
        state = ServerState()
        return await asyncio.get_running_loop().create_server(
            lambda: protocol(config, state, {}), "127.0.0.1", 0
        )

    server = loop.run(start())
    yield server.sockets[0].getsockname()[1]

    async def stop() -> None:
        server.close()
        await server.wait_closed()

    loop.run(stop())
    loop.close()


@pytest.mark.parametrize("line", ["", "GET / HTTP/1.1\r\nX-Slow: "])
def test_a_connection_without_a_request_is_closed(line: str) -> None:
    with bare_server(0.2) as port, connected(port, line) as connection:
        assert until_closed(connection) == b""


def test_a_connection_with_a_request_is_not_closed() -> None:
    lines = ("GET / HTTP/1.1", "Host: x", "Connection: close", "", "")
    with bare_server(0.2) as port, connected(port, *lines) as connection:
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
