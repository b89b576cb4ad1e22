"""POST /v1/chat/completions over a socket, mostly through OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import pytest

from omruntime.outputs import TokenDelta
from omruntime.sequence import FinishReason, Request
from server.http.body_limit import MAX_VALUES
from tests.server.http.serving import MODEL_NAME, TOKENIZER, Serving, serving
from tests.server.scripted_engine import last, one_by_one
from tests.server.tiny_tokenizers import byte_level_backend, tokenizer_of

HELLO = [{"role": "user", "content": "hello"}]
ANSWER = "Grüße, 日本 👋!"


def says_answer(request: Request) -> list[TokenDelta]:
    """The answer up to the request's length limit."""
    token_ids = TOKENIZER.encode_text(ANSWER)
    limit = request.params.max_new_tokens
    if limit is not None and limit < len(token_ids):
        return one_by_one(token_ids[:limit], FinishReason.LENGTH)
    return one_by_one([*token_ids, 2], FinishReason.STOP)


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(says_answer) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def post(server: Serving, body: object) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=20)


def events_of(response: httpx.Response) -> list[Any]:
    """The chunks of a stream, whose last event is [DONE]."""
    blocks = response.text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


def test_a_whole_answer(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model=MODEL_NAME, messages=HELLO)
    assert reply.choices[0].message.content == ANSWER
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == MODEL_NAME
    assert reply.usage is not None
    assert reply.usage.completion_tokens == len(TOKENIZER.encode_text(ANSWER)) + 1


def test_a_stream_gives_the_same_text(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model=MODEL_NAME, messages=HELLO, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == ANSWER


@pytest.mark.parametrize(
    ("limits", "num_tokens"),
    [
        ({"max_completion_tokens": 3}, 3),
        ({"max_tokens": 32, "max_completion_tokens": 1}, 1),
        ({"max_tokens": 3}, 3),
    ],
)
def test_the_newer_name_of_the_length_limit_wins(
    server: Serving, limits: dict[str, int], num_tokens: int
) -> None:
    """BL-33."""
    reply = post(server, {"messages": HELLO, **limits}).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == num_tokens


def test_the_chunks_of_two_answers(server: Serving) -> None:
    """BL-34: role first, one reason last, one id throughout, usage in a chunk of its own."""
    body = {"messages": HELLO, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    chunks = events_of(post(server, body))
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    *rest, usage = chunks
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] > 0
    assert all(chunk["usage"] is None for chunk in rest)
    for index in (0, 1):
        choices = [c["choices"][0] for c in rest if c["choices"][0]["index"] == index]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert [c["finish_reason"] for c in choices[:-1]] == [None] * (len(choices) - 1)
        assert choices[-1] == {
            "index": index,
            "delta": {},
            "logprobs": None,
            "finish_reason": "stop",
        }
        assert "".join(c["delta"].get("content", "") for c in choices) == ANSWER


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}])
def test_no_usage_in_chunks_unless_asked_for(server: Serving, options: dict[str, Any]) -> None:
    """BL-34."""
    chunks = events_of(post(server, {"messages": HELLO, "stream": True, **options}))
    assert not any("usage" in chunk for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_stream_can_pass_proxies(server: Serving) -> None:
    """BL-37."""
    headers = post(server, {"messages": HELLO, "stream": True}).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"messages": []}, "messages", "empty"),
        ({"messages": [{"role": "user"}]}, "messages", "no content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages",
            "takes text",
        ),
        (
            {"messages": [{"role": "assistant", "content": "", "function_call": {"name": "f"}}]},
            "messages",
            "function_call is not built in",
        ),
        (
            {"messages": [{"role": "function", "content": "42"}]},
            "messages",
            "role function is not built in",
        ),
        ({"messages": HELLO, "n": 0}, "n", "n is 0"),
        ({"messages": HELLO, "n": 0, "stream": True}, "n", "n is 0"),
        ({"messages": HELLO, "stop": ""}, "stop", "empty"),
        ({"messages": HELLO, "stop": ["7", ""]}, "stop", "stop"),
        ({"messages": HELLO, "stop": 7}, "stop", "got 7"),
        ({"messages": HELLO, "top_logprobs": 3}, "top_logprobs", "set logprobs"),
        (
            {"messages": HELLO, "logprobs": True, "top_logprobs": 21},
            "top_logprobs",
            "logprobs is 21",
        ),
        ({"messages": HELLO, "stream_options": {}}, "stream_options", "set stream"),
        ({"messages": HELLO, "functions": [{"name": "f"}]}, "functions", "not built in"),
        ({"messages": HELLO, "audio": {}}, "audio", "not built in"),
        ({"messages": HELLO, "store": True}, "store", "not built in"),
        ({"messages": HELLO, "service_tier": "flex"}, "service_tier", "not built in"),
        (
            {"messages": HELLO, "min_tokens": 9, "max_tokens": 5},
            "min_tokens",
            "min_tokens is 9 and max_tokens 5; lower min_tokens or raise max_tokens",
        ),
        ({"messages": HELLO, "modalities": ["audio"]}, "modalities", "not built in"),
        ({"messages": HELLO, "prediction": {}}, "prediction", "not built in"),
        ({"messages": HELLO, "chat_template": "x"}, "chat_template", "not built in"),
        ({"messages": HELLO, "logit_bias": {"x": 1}}, "logit_bias", "token id"),
        ({"messages": HELLO, "logit_bias": {"07": 1, "7": 1}}, "logit_bias", "key '07'"),
        ({"messages": HELLO, "allowed_token_ids": []}, "allowed_token_ids", "empty"),
        ({"messages": HELLO, "bad_words": ["x"]}, "bad_words", "not built in"),
        ({"messages": HELLO, "regex": "x"}, "regex", "not built in"),
        ({"messages": HELLO, "include_reasoning": False}, "include_reasoning", "not built in"),
        (
            {"messages": HELLO, "continue_final_message": True},
            "continue_final_message",
            "not built in",
        ),
        ({"messages": HELLO, "max_tokens": "many"}, "max_tokens", "got 'many'"),
        ({"messages": HELLO, "temperature": True}, "temperature", "got True"),
        ([], None, "body"),
    ],
)
def test_a_wrong_body_is_refused_by_name(
    server: Serving, body: object, param: str | None, words: str
) -> None:
    """BL-16, BL-22, BL-27, BL-32, BL-34, BL-35: 400 before anything is streamed."""
    response = post(server, body)
    error = response.json()["error"]
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert words in error["message"]


def test_harmless_extras_are_accepted(server: Serving) -> None:
    """BL-32: so is a typo, since clients send fields of their own."""
    extras = {
        "store": False,
        "metadata": {},
        "parallel_tool_calls": False,
        "service_tier": "auto",
        "user": "u1",
        "temperatur": 0,
        "tools": [],
        "response_format": {"type": "text"},
        "add_generation_prompt": True,
        "length_penalty": 1,
    }
    messages = [{"role": "user", "content": "hello", "id": "m1"}]
    assert post(server, {"messages": messages, **extras}).status_code == 200


def test_allowed_tokens(server: Serving) -> None:
    assert post(server, {"messages": HELLO, "allowed_token_ids": [7, 9]}).status_code == 200
    assert server.engine.submitted[-1].params.allowed_token_ids == (7, 9)


def test_parts_of_text_are_joined(server: Serving) -> None:
    """BL-16: no list and no None ever reaches the prompt."""
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hi"}]
    post(server, {"messages": [{"role": "user", "content": parts}]})
    prompt = TOKENIZER.decode(server.engine.submitted[-1].prompt_token_ids, False)
    assert "Say hi<|im_end|>" in prompt


def test_another_model_is_refused_with_the_served_name(server: Serving) -> None:
    """BL-38."""
    response = post(server, {"model": "gpt-4o", "messages": HELLO})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert MODEL_NAME in response.json()["error"]["message"]


def test_a_body_that_is_no_json(server: Serving) -> None:
    url, headers = f"{server.url}/v1/chat/completions", {"Content-Type": "application/json"}
    response = httpx.post(url, content=b"{", headers=headers, timeout=20)
    assert response.status_code == 400
    assert "not JSON" in response.json()["error"]["message"]


def test_a_body_beyond_the_limit_is_refused(server: Serving) -> None:
    """BL-41."""
    body = json.dumps({"messages": [{"role": "user", "content": "a" * (2 << 20)}]})
    for content in (body, (piece.encode() for piece in (body[:600000], body[600000:]))):
        response = httpx.post(f"{server.url}/v1/chat/completions", content=content, timeout=20)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"


def test_a_body_of_too_many_values_is_refused(server: Serving) -> None:
    """Each would be an object; a text of the same size is one."""
    content = json.dumps({"messages": HELLO, "stop_token_ids": [7] * MAX_VALUES})
    response = httpx.post(f"{server.url}/v1/chat/completions", content=content, timeout=20)
    assert response.status_code == 413
    assert "262,144 values" in response.json()["error"]["message"]
    assert post(server, {"messages": HELLO, "stop_token_ids": [7] * 100}).status_code == 200


def fails_later(_request: Request) -> list[TokenDelta]:
    first = TokenDelta(tuple(TOKENIZER.encode_text("so ")))
    return [first, last(FinishReason.ERROR, error="code 507899")]


def test_a_fault_in_mid_stream_is_an_error_event_and_no_end() -> None:
    """BL-35: the client raises instead of taking a part for the whole."""
    with serving(fails_later) as server:
        text = post(server, {"messages": HELLO, "stream": True}).text
        *_, event, rest = text.split("\n\n")
        error = json.loads(event.removeprefix("data: "))["error"]
        assert rest == ""
        assert "507899" in error["message"]
        assert error["type"] == "server_error"
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            stream = client.chat.completions.create(model=MODEL_NAME, messages=HELLO, stream=True)
            with pytest.raises(openai.APIError, match="507899"):
                list(stream)
        assert post(server, {"messages": HELLO}).status_code == 500


def talks_on(_request: Request) -> list[TokenDelta]:
    return [TokenDelta((i,)) for i in TOKENIZER.encode_text("on and ")]


def test_two_live_requests_may_have_one_header() -> None:
    """BL-39: it is an echo, never a key."""
    headers = {"X-Request-Id": "from-a-proxy"}
    body = {"messages": HELLO, "stream": True}
    with serving(talks_on) as server, ExitStack() as live:
        ids = set()
        for _ in range(2):
            url = f"{server.url}/v1/chat/completions"
            call = live.enter_context(httpx.stream("POST", url, json=body, headers=headers))
            assert call.status_code == 200
            first = next(call.iter_lines()).removeprefix("data: ")
            ids.add(json.loads(first)["id"])
    assert len(ids) == 2
    assert all(found.startswith("chatcmpl-from-a-proxy-") for found in ids)


def test_a_name_reaches_the_template_whoever_has_it() -> None:
    template = "{% for m in messages %}{{ m.name }}:{{ m.content }}{% endfor %}"
    messages = [{"role": "user", "content": "hi", "name": "Ada"}]
    tokenizer = tokenizer_of(byte_level_backend(), template)
    with serving(says_answer, tokenizer=tokenizer) as server:
        post(server, {"messages": messages})
        assert TOKENIZER.decode(server.engine.submitted[-1].prompt_token_ids) == "Ada:hi"


REFUSES = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{{ messages[0].content }}"
)


@pytest.mark.parametrize("stream", [False, True])
def test_the_templates_own_sentence_comes_before_any_event(stream: bool) -> None:
    """BL-15."""
    tokenizer = tokenizer_of(byte_level_backend(), REFUSES)
    with serving(talks_on, tokenizer=tokenizer) as server:
        system = [{"role": "system", "content": "x"}]
        response = post(server, {"messages": system, "stream": stream})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert "System role not supported" in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_aborts_its_request(stream: bool) -> None:
    with serving(talks_on) as server:
        body = {"messages": HELLO, "stream": stream}
        with (
            httpx.Client(timeout=0.5) as client,
            pytest.raises(httpx.ReadTimeout),
            client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as response,
        ):
            response.read()
        assert len(server.engine.submitted) == 1

        async def ended() -> None:
            await server.lifecycle.wait_idle()

        server.loop.run(ended())
        assert server.engine.live == set()


def test_a_server_that_still_loads_says_so() -> None:
    with serving(says_answer, ready=False) as server:
        response = post(server, {"messages": HELLO})
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert httpx.get(f"{server.url}/ready").status_code == 503
        assert httpx.get(f"{server.url}/health").status_code == 200
