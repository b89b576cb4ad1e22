"""HTTP as servers frame it: chunks, lengths, ends of connections, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from omruntime.errors import CallError, RequestError
from server.terminal.bench.targets.http_connection import HttpConnections
from tests.server.terminal.bench.raw_http import RawServer, chunked, raw_server, with_length


async def events_of(http: HttpConnections) -> list[str]:
    return [event async for event in http.post_events("/v1/completions", {"a": 1})]


def opened(url: str) -> aclosing[HttpConnections]:
    return aclosing(HttpConnections(url, {}))


def posted(*replies: Sequence[bytes], times: int = 1) -> tuple[list[list[str]], RawServer]:
    """The events of as many posts over one `HttpConnections`, and the server."""

    async def run() -> tuple[list[list[str]], RawServer]:
        async with raw_server(*replies) as server, opened(server.url) as http:
            return [await events_of(http) for _ in range(times)], server

    return asyncio.run(run())


def test_events_come_whole_however_the_chunks_cut_them() -> None:
    text = b': a comment\r\nevent: x\r\ndata: {"a": 1}\r\n\r\ndata:two\n\ndata: [DONE]\n\n'
    wanted = ['{"a": 1}', "two", "[DONE]"]
    every_byte = [text[i : i + 1] for i in range(len(text))]
    for reply in (chunked(text), chunked(*every_byte), with_length(text)):
        found, server = posted(reply)
        assert found == [wanted]
        assert server.bodies == [b'{"a": 1}']
    ended = [b"HTTP/1.0 200 OK\r\n\r\n", text, b""]
    assert posted(ended)[0] == [wanted]


def test_a_connection_is_used_again_unless_the_server_closes_it() -> None:
    assert posted(chunked(b"data: 1\n"), chunked(b"data: 2\n"), times=2)[1].num_connections == 1
    closing = with_length(b"data: 1\n", headers="Connection: close\r\n")
    assert posted(closing, chunked(b"data: 2\n"), times=2)[1].num_connections == 2


def test_an_idle_connection_that_the_server_closed_is_replaced() -> None:
    silent = [b""]
    found, server = posted(chunked(b"data: 1\n"), silent, chunked(b"data: 2\n"), times=2)
    assert found == [["1"], ["2"]]
    assert server.num_connections == 2


@pytest.mark.parametrize(
    ("reply", "code", "told"),
    [
        (with_length(b'{"error": {"message": "too fast"}}', "429 Slow"), "HTTP 429", "too fast"),
        (with_length(b'{"message": "no"}', "400 Bad"), "HTTP 400", "no"),
        (with_length(b"<h1>down</h1>", "502 Bad Gateway"), "HTTP 502", "<h1>down</h1>"),
        (with_length(b"", "500 Oops"), "HTTP 500", "no reason is given"),
        ([b"SSH-2.0-x\r\n\r\n"], "CONNECTION", "wanted HTTP/1.1"),
        ([b""], "CONNECTION", "0 bytes read"),
        ([*chunked(b"data: 1\n")[:-1], b""], "CONNECTION", "0 bytes read"),
        ([with_length(b"data: 1\n")[0], b"da", b""], "CONNECTION", "bytes read"),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"], "CONNECTION", "zz"),
        ([b"HTTP/1.1 200 OK\r\nx: " + b"y" * (1 << 17)], "CONNECTION", "limit"),
    ],
)
def test_refusals_and_broken_replies_have_a_code(
    reply: Sequence[bytes], code: str, told: str
) -> None:
    with pytest.raises(CallError, match=told) as raised:
        posted(reply)
    assert raised.value.code == code


def test_nobody_there_is_told() -> None:
    async def run() -> None:
        await HttpConnections("http://127.0.0.1:1", {}).get_json("/v1/models")

    with pytest.raises(CallError, match=r"http://127\.0\.0\.1:1: .*Connect call failed"):
        asyncio.run(run())


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://x", "http://", "http://x:y", "http://x?a"]
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(RequestError, match=r"wanted http://host:port or https://host:port"):
        HttpConnections(url, {})


def test_the_path_that_clients_of_openai_want_is_left_out() -> None:
    assert HttpConnections("http://x:1/v1/", {}).base_url == "http://x:1"
    assert HttpConnections("https://x/api/v1", {}).base_url == "https://x/api"
