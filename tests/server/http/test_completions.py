"""POST /v1/completions over a socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from omruntime.outputs import TokenDelta
from omruntime.sequence import FinishReason, Request
from omruntime.step import TokenLogprobs
from tests.server.http.serving import MODEL_NAME, TOKENIZER, Serving, serving
from tests.server.scripted_engine import last, one_by_one


def repeats_its_prompt(request: Request) -> list[TokenDelta]:
    """The prompt once more and an end token, so that each answer shows whose it is."""
    return one_by_one([*request.prompt_token_ids, 2], FinishReason.STOP)


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(repeats_its_prompt) as running:
        yield running


def post(server: Serving, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=20)


def texts_of(response: httpx.Response) -> dict[int, str]:
    """The text of each choice, whole or streamed."""
    if response.headers["content-type"] == "application/json":
        return {c["index"]: c["text"] for c in response.json()["choices"]}
    texts: dict[int, str] = {}
    for block in response.text.removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]:
        for choice in json.loads(block.removeprefix("data: "))["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("abc", ["abc"]),
        (["abc", "xy"], ["abc", "xy"]),
        (list(TOKENIZER.encode_text("abc")), ["abc"]),
        ([list(TOKENIZER.encode_text("abc")), list(TOKENIZER.encode_text("xy"))], ["abc", "xy"]),
    ],
)
def test_prompts_of_every_kind(
    server: Serving, prompt: object, texts: list[str], stream: bool
) -> None:
    response = post(server, prompt=prompt, n=2, stream=stream)
    assert response.status_code == 200
    assert texts_of(response) == dict(enumerate(t for t in texts for _ in range(2)))


@pytest.mark.parametrize("stream", [False, True])
def test_echo_puts_the_prompt_first(server: Serving, stream: bool) -> None:
    assert texts_of(post(server, prompt="abc", echo=True, stream=stream)) == {0: "abcabc"}


def test_each_prompt_is_counted_once(server: Serving) -> None:
    usage = post(server, prompt=["abc", "xy"], n=2).json()["usage"]
    assert usage["prompt_tokens"] == 5
    assert usage["completion_tokens"] == 2 * 4 + 2 * 3


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": []}, "prompt", "empty list"),
        ({"prompt": ["a"] * 129}, "prompt", "at most 128"),
        ({"prompt": "a", "suffix": "b"}, "suffix", "not built in"),
        ({"prompt": "a", "best_of": 3}, "best_of", "not built in"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "logprobs is 21"),
        ({"prompt": "a", "logprobs": -1}, "logprobs", "logprobs is -1"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "max_tokens is 0"),
        ({"prompt": [1, 9999]}, "prompt", "9999"),
        ({}, "prompt", "is missing"),
    ],
)
def test_a_wrong_body_is_refused_by_name(
    server: Serving, body: dict[str, Any], param: str | None, words: str
) -> None:
    response = post(server, **body)
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["param"] == param
    assert words in error["message"]


def talks_on(_request: Request) -> list[TokenDelta]:
    return [TokenDelta((i,)) for i in TOKENIZER.encode_text("on and ")]


@pytest.mark.parametrize("stream", [False, True])
def test_one_refused_prompt_ends_the_call_and_leaves_nothing_behind(stream: bool) -> None:
    """The other prompt's answer would never end by itself."""
    with serving(talks_on) as server:
        response = post(server, prompt=["a", "b" * 600], stream=stream)
        assert response.status_code == 400
        server.loop.run(server.lifecycle.wait_idle())
        assert server.engine.live == set()


def test_through_the_client(server: Serving) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        reply = client.completions.create(model=MODEL_NAME, prompt="abc", stop="c")
        assert reply.choices[0].text == "ab"
        assert reply.choices[0].finish_reason == "stop"
        assert client.models.list().data[0].id == MODEL_NAME
        assert client.models.retrieve(MODEL_NAME).id == MODEL_NAME
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("other")


@pytest.mark.parametrize(
    ("method", "path", "status", "wanted"),
    [
        ("GET", "/nowhere", 404, "/openapi.json lists"),
        ("GET", "/v1/completions", 405, "wanted POST"),
        ("POST", "/completions", 404, "wanted /v1/completions: mend the client's base URL"),
        ("POST", "/v1/generate", 404, "wanted /generate: mend"),
        ("POST", "/v1/v1/completions", 404, "wanted /v1/completions: mend"),
    ],
)
def test_a_wrong_path_or_method_is_told_the_right_one(
    server: Serving, method: str, path: str, status: int, wanted: str
) -> None:
    response = httpx.request(method, f"{server.url}{path}")
    assert response.status_code == status
    message = response.json()["error"]["message"]
    assert path in message
    assert wanted in message


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/completions", {"max_tokens": 1}, "prompt is missing; set it"),
        ("/v1/completions", None, "body is missing; set it"),
        ("/generate", {"inputs": "a", "max_new_tokens": 2}, "max_new_tokens is no field here;"),
        ("/v1/completions", {"prompt": "a", "guided_json": {}}, "; use structured_outputs"),
        ("/v1/completions", {"prompt": "a", "bad_words": ["x"]}, "; leave it out"),
        ("/v1/responses", {"input": "a", "max_tokens": 2}, "; use max_output_tokens"),
        ("/v1/responses", {"input": "a", "guided_json": {}}, "; use text.format"),
    ],
)
def test_a_wrong_field_is_told_what_to_do(
    server: Serving, path: str, body: object, message: str
) -> None:
    content = b"" if body is None else json.dumps(body).encode()
    reply = httpx.post(
        f"{server.url}{path}", content=content, headers={"content-type": "application/json"}
    )
    error = reply.json()["error"]
    assert message in (error if isinstance(error, str) else error["message"])


def parts_of_a_character(request: Request) -> list[TokenDelta]:
    """`a`, then the first byte of a character that never comes; each with its alternatives."""
    assert request.params.logprobs == 3
    letter, part = TOKENIZER.encode_text("a")[0], TOKENIZER.encode_text("é")
    top = ((letter, -0.5), (part[0], -1.5), (part[1], -2.5))
    return [
        TokenDelta((letter,), (TokenLogprobs(-0.5, top),)),
        TokenDelta((part[0],), (TokenLogprobs(-1.5, top),)),
        last(FinishReason.LENGTH),
    ]


def a_character_and_a_letter(_: Request) -> list[TokenDelta]:
    ids = TOKENIZER.encode_text("éa")
    assert len(ids) == 3
    return [*(TokenDelta((i,), (TokenLogprobs(-1.0, ()),)) for i in ids), last(FinishReason.LENGTH)]


def test_places_of_tokens_are_places_in_the_text() -> None:
    """Two tokens make the first character, though each by itself is a sign of its own."""
    with serving(a_character_and_a_letter) as server:
        (choice,) = post(server, prompt="x", logprobs=0).json()["choices"]
        assert choice["text"] == "éa"
        assert choice["logprobs"]["text_offset"] == [0, 0, 1]


def test_logprobs_of_every_token_and_alternative() -> None:
    """BL-27: also of tokens that are no text by themselves; two of those keep their places."""
    second = TOKENIZER.encode_text("é")[1]
    wanted = {"a": -0.5, "\ufffd": -1.5, f"token_id:{second}": -2.5}
    with serving(parts_of_a_character) as server:
        (choice,) = post(server, prompt="x", logprobs=3).json()["choices"]
        assert choice["text"] == "a\ufffd"
        assert choice["logprobs"] == {
            "tokens": ["a", "\ufffd"],
            "token_logprobs": [-0.5, -1.5],
            "top_logprobs": [wanted, wanted],
            "text_offset": [0, 1],
        }
        body = {"messages": [{"role": "user", "content": "x"}]}
        body |= {"logprobs": True, "top_logprobs": 3}
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=20).json()
        entries = reply["choices"][0]["logprobs"]["content"]
        assert [(e["token"], e["logprob"], e["bytes"]) for e in entries] == [
            ("a", -0.5, [97]),
            ("\ufffd", -1.5, None),
        ]
        assert [len(e["top_logprobs"]) for e in entries] == [3, 3]
