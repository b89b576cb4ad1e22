"""A client that goes away ends its request, whatever the request is waiting for."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.wire_fakes import FakeGenerator, FakeServer, settings_of

HELLO = [{"role": "user", "content": "x"}]
ROUTES = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/responses": {"input": "x"},
    "/generate": {"inputs": "x"},
}


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    """One whose requests wait without an end for their first token."""
    with FakeServer(settings_of(http_port=0)) as found:
        found.generator.script = [FakeGenerator.HOLD]
        yield found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", list(ROUTES))
def test_a_client_that_leaves_before_the_first_token_ends_its_request(
    server: FakeServer, path: str, stream: bool
) -> None:
    """BL-43: its prompt would be computed for nobody, and hold up the others'."""
    generator = server.generator
    num_closed = generator.num_closed
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as connection:
        connection.sendall(request(path, {**ROUTES[path], "stream": stream}))
        server.await_that(lambda: len(generator.live) == 1)
    server.await_that(lambda: generator.num_closed == num_closed + 1)
    assert server.lifecycle.num_running == 0


def request(path: str, body: dict[str, Any]) -> bytes:
    text = json.dumps(body)
    head = (f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json")
    return "\r\n".join((*head, f"Content-Length: {len(text)}", "", text)).encode()
