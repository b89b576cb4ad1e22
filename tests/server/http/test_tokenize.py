"""/tokenize and /detokenize, and what else is asked beside requests, over a socket."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from omruntime.outputs import TokenDelta
from omruntime.sequence import FinishReason, Request
from server.text import ChatMessage
from tests.server.http.serving import TOKENIZER, Serving, serving, with_logprobs
from tests.server.scripted_engine import one_by_one

TURN = {"role": "user", "content": "abc"}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    def says_a(request: Request) -> list[TokenDelta]:
        return with_logprobs(one_by_one([7, 2], FinishReason.STOP), request.params.logprobs)

    with serving(says_a) as running:
        yield running


def test_tokens_there_and_back(server: Serving) -> None:
    reply = httpx.post(f"{server.url}/tokenize", json={"prompt": "abc"}).json()
    limit = reply.pop("max_model_len")
    assert reply == {"tokens": list(TOKENIZER.encode_text("abc")), "count": 3}
    back = httpx.post(f"{server.url}/detokenize", json={"tokens": reply["tokens"]}).json()
    assert back == {"prompt": "abc"}
    assert httpx.get(f"{server.url}/v1/models").json()["data"][0]["max_model_len"] == limit > 3


def test_a_conversation_has_the_tokens_that_its_completion_counts(server: Serving) -> None:
    asks_nothing = {"continue_final_message": False, "return_token_strs": False}
    body = {"messages": [TURN], **asks_nothing}
    counted = httpx.post(f"{server.url}/tokenize", json=body).json()
    text = TOKENIZER.render_chat([ChatMessage("user", "abc")])
    assert tuple(counted["tokens"]) == TOKENIZER.encode_text(text, add_special_tokens=False)
    reply = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": [TURN]}).json()
    assert reply["usage"]["prompt_tokens"] == counted["count"]


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/v1/models", "/metrics"])
def test_head_answers_as_get_without_a_body(server: Serving, path: str) -> None:
    asked, got = httpx.head(f"{server.url}{path}"), httpx.get(f"{server.url}{path}")
    assert (asked.status_code, asked.content) == (200, b"")
    assert asked.headers["content-type"] == got.headers["content-type"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/generate", {"inputs": "a"}, 200),
        ("/generate_stream", {"inputs": "a"}, 200),
        ("/v1/completions", {"prompt": "a", "max_tokens": 9999}, 400),
        ("/v1/chat/completions", {"messages": [TURN], "stream": True}, 200),
        ("/v1/responses", {"input": "a", "max_output_tokens": 9999}, 400),
    ],
)
def test_a_reply_tells_its_requests_id(
    server: Serving, path: str, body: dict[str, object], status: int
) -> None:
    response = httpx.post(f"{server.url}{path}", json=body, headers={"X-Request-Id": "mine"})
    assert response.status_code == status
    assert "-mine-" in response.headers["x-request-id"]
    if path == "/v1/chat/completions":
        assert f'"id":"{response.headers["x-request-id"]}"' in response.text


@pytest.mark.parametrize(("given", "told"), [("mine", "mine"), ("not mine", None)])
@pytest.mark.parametrize("body", [b"{", b"{}", b'{"prompt": "a", "model": "other"}'])
def test_a_request_that_came_to_no_id_is_told_by_the_clients_own(
    server: Serving, body: bytes, given: str, told: str | None
) -> None:
    headers = {"X-Request-Id": given, "Content-Type": "application/json"}
    response = httpx.post(f"{server.url}/v1/completions", content=body, headers=headers)
    assert response.status_code in (400, 404)
    assert response.headers.get("x-request-id") == told
