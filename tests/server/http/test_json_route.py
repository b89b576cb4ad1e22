"""Bodies that Python's JSON reader lets through, and little else does, over a socket."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import httpx
import pytest

from tests.server.http.serving import Serving, saying
from tests.server.tiny_tokenizers import CHAT_TEMPLATE


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with saying("Yes", CHAT_TEMPLATE) as running:
        yield running


def post(server: Serving, path: str, body: bytes) -> httpx.Response:
    headers = {"Content-Type": "application/json"}
    return httpx.post(f"{server.url}{path}", content=body, headers=headers, timeout=20)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (rb'{"input": "x", "metadata": {"a": "\ud800"}}', "half of a surrogate pair"),
        (rb'{"input": "x", "user": "\udc00\ud800", "stream": true}', "half of a surrogate pair"),
        (b'{"input": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"input": "\xff"}', "not UTF-8"),
        (b'{"input": "x", "temperature": NaN}', "NaN is no number"),
        (b'{"input": "x", "zz": -Infinity}', "-Infinity is no number"),
        (b'{"input": "x", "zz": 1e999}', "1e999 is too large"),
        (b'{"input": "x", "zz": ' + b"1" * 5000 + b"}", "too many digits"),
        (b"[" * 100_000, "nested too deeply"),
        (b"{", "not JSON"),
        (b'{"input": x}', "Expecting value at character 10"),
    ],
)
def test_a_body_that_is_no_json(server: Serving, body: bytes, words: str) -> None:
    response = post(server, "/v1/responses", body)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


def test_every_route_reads_so(server: Serving) -> None:
    paths = ("chat/completions", "completions", "responses")
    for path in (*(f"/v1/{each}" for each in paths), "/tokenize", "/detokenize"):
        response = post(server, path, b'{"zz": NaN}')
        assert response.status_code == 400
        assert "NaN" in response.json()["error"]["message"]
    for path in ("/", "/generate", "/generate_stream"):
        response = post(server, path, b'{"zz": NaN}')
        assert response.status_code == 422
        assert "NaN" in response.json()["error"]


def test_whole_pairs_and_a_mark_of_order_are_fine(server: Serving) -> None:
    body = rb'{"input": "\ud83d\udc4b", "metadata": {"a": "\ud83d\udc4b"}}'
    reply = post(server, "/v1/responses", b"\xef\xbb\xbf" + body).json()
    assert reply["metadata"] == {"a": "👋"}


def test_a_compressed_body_is_refused_by_name(server: Serving) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    body = gzip.compress(b'{"input": "x"}')
    response = httpx.post(f"{server.url}/v1/responses", content=body, headers=headers, timeout=20)
    assert response.status_code == 400
    assert "content-encoding is 'gzip'; send it unc" in response.json()["error"]["message"]


def test_a_body_that_is_not_said_to_be_json(server: Serving) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    url = f"{server.url}/v1/completions"
    reply = httpx.post(url, content=b'{"prompt": "x"}', headers=headers, timeout=20)
    assert reply.status_code == 400
    assert "send the header content-type: application/json" in reply.json()["error"]["message"]
