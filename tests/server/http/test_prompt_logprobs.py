"""Echo with logprobs, scoring alone, and vLLM's `prompt_logprobs`, over a socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from server.text import ChatMessage
from tests.server.http.serving import MODEL_NAME, TOKENIZER, Serving, serving
from tests.server.scored_script import logprob_of, rank_of, scored

TEXT = "the cat"
PROMPT = TOKENIZER.encode_text(TEXT)
TEXTS = [TOKENIZER.decode((i,), False) for i in PROMPT]
LOGPROBS = [None, *(logprob_of(t, p) for p, t in enumerate(PROMPT) if p)]
# What the scripted model lists as its best.
BEST = [(TOKENIZER.decode((100 + i,), False), -1.5 - i) for i in range(20)]


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(scored) as running:
        yield running


def post(server: Serving, path: str = "completions", **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/{path}", json=body, timeout=20)


def chunks_of(response: httpx.Response) -> list[dict[str, Any]]:
    blocks = response.text.removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


@pytest.mark.parametrize("prompt", [TEXT, list(PROMPT), [TEXT, TEXT]])
def test_a_likelihood_request(server: Serving, prompt: object) -> None:
    """BL-29: as evaluation harnesses send it, as text, as token ids and for several prompts."""
    response = post(server, prompt=prompt, max_tokens=0, echo=True, logprobs=1)
    assert response.status_code == 200
    body = response.json()
    assert len(body["choices"]) == (2 if prompt == [TEXT, TEXT] else 1)
    for choice in body["choices"]:
        assert choice["text"] == TEXT
        assert choice["finish_reason"] == "length"
        logprobs = choice["logprobs"]
        assert logprobs["tokens"] == TEXTS
        assert logprobs["token_logprobs"] == LOGPROBS
        assert logprobs["top_logprobs"] == [None, *[dict(BEST[:1])] * (len(PROMPT) - 1)]
        places = zip(logprobs["text_offset"], TEXTS, strict=True)
        assert all(TEXT[at:].startswith(text) for at, text in places)
        assert logprobs["text_offset"] == sorted(set(logprobs["text_offset"]))
    assert body["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [0, 3])
def test_echo_with_an_answer(server: Serving, logprobs: int, stream: bool) -> None:
    """Prompt and answer in one list; the harness leaves the last entry, the answer's, out."""
    response = post(server, prompt=TEXT, max_tokens=1, echo=True, logprobs=logprobs, stream=stream)
    if stream:
        choices = [chunk["choices"][0] for chunk in chunks_of(response)]
    else:
        choices = response.json()["choices"]
    assert "".join(choice["text"] for choice in choices) == f"{TEXT}the"
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "text_offset": []}
    for choice in choices:
        for name, values in found.items():
            values += (choice["logprobs"] or {name: []})[name]
    # The scripted engine gives its answer no logprobs.
    assert found["tokens"] == TEXTS
    assert found["token_logprobs"] == LOGPROBS
    assert found["text_offset"] == [sum(map(len, TEXTS[:i])) for i in range(len(TEXTS))]
    assert choices[-1]["finish_reason"] == "stop"


def test_echo_of_several_answers(server: Serving) -> None:
    choices = post(server, prompt=TEXT, echo=True, logprobs=1, n=2).json()["choices"]
    assert [c["text"] for c in choices] == [f"{TEXT}the"] * 2
    assert [c["logprobs"]["token_logprobs"] for c in choices] == [LOGPROBS] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_echo_without_logprobs_and_without_an_answer(server: Serving, stream: bool) -> None:
    response = post(server, prompt=TEXT, max_tokens=0, echo=True, stream=stream)
    bodies = chunks_of(response) if stream else [response.json()]
    choices = [choice for body in bodies for choice in body["choices"]]
    assert "".join(choice["text"] for choice in choices) == TEXT
    assert all(choice["logprobs"] is None for choice in choices)


def entry_of(token_id: int, logprob: float, rank: int) -> dict[str, Any]:
    return {
        "logprob": logprob,
        "rank": rank,
        "decoded_token": TOKENIZER.decode((token_id,), False),
    }


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize("k", [0, 2])
def test_prompt_logprobs_by_vllms_name(server: Serving, path: str, k: int) -> None:
    """By token id: the prompt's own and the best k; nothing for the first token."""
    if path == "completions":
        body = post(server, path, prompt=TEXT, prompt_logprobs=k).json()
        prompt, found = PROMPT, body["choices"][0]["prompt_logprobs"]
    else:
        messages = [{"role": "user", "content": "Hi"}]
        body = post(server, path, messages=messages, prompt_logprobs=k, max_tokens=3).json()
        rendered = TOKENIZER.render_chat([ChatMessage("user", "Hi")], None)
        prompt, found = TOKENIZER.encode_text(rendered, False), body["prompt_logprobs"]
    assert found[0] is None
    for position, (token_id, entries) in enumerate(zip(prompt, found, strict=True)):
        if position:
            wanted = {str(100 + i): entry_of(100 + i, -1.5 - i, i + 1) for i in range(k)} | {
                str(token_id): entry_of(token_id, logprob_of(token_id, position), rank_of(token_id))
            }
            assert entries == wanted


def test_a_chat_may_be_scored_alone(server: Serving) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    body = post(
        server, "chat/completions", messages=messages, prompt_logprobs=0, max_tokens=0
    ).json()
    assert body["choices"][0]["message"]["content"] == ""
    assert body["choices"][0]["finish_reason"] == "length"
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]


def test_both_kinds_have_as_many_alternatives_as_they_asked_for(server: Serving) -> None:
    body = post(server, prompt=TEXT, max_tokens=0, echo=True, logprobs=1, prompt_logprobs=3)
    (choice,) = body.json()["choices"]
    assert len(choice["logprobs"]["top_logprobs"][1]) == 1
    assert len(choice["prompt_logprobs"][1]) == 4


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "leave stream out"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "prompt_logprobs is 21"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "prompt_logprobs is -1"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0"),
        ({"max_tokens": 0, "logprobs": 1}, "max_tokens", "max_tokens is 0"),
        ({"echo": True, "max_tokens": 0, "n": 2}, "n", "n is 2"),
        ({"echo": True, "logprobs": 1, "n": 2, "stream": True}, "echo", "leave stream out"),
        ({"echo": True, "logprobs": 21}, "logprobs", "logprobs is 21"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    server: Serving, body: dict[str, Any], param: str | None, words: str
) -> None:
    response = post(server, **({"prompt": "a"} | body))
    assert response.status_code == 400
    error = response.json()["error"]
    assert words in error["message"]
    assert error["param"] == param


def test_the_openai_client_reads_an_echo(server: Serving) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        completion = client.completions.create(
            model=MODEL_NAME, prompt=TEXT, max_tokens=0, echo=True, logprobs=1
        )
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs == LOGPROBS


def test_what_matched_is_said_by_vllms_name(server: Serving) -> None:
    for path, prompt in (
        ("completions", {"prompt": "a"}),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        (choice,) = post(server, path, stop="he", **prompt).json()["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "he")
        (choice,) = post(server, path, **prompt).json()["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
