"""text-generation-inference's routes over a socket, mostly through Hugging Face's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import ValidationError

from omruntime.outputs import TokenDelta
from omruntime.sequence import FinishReason, Request
from tests.server.http.serving import TOKENIZER, Serving, saying, serving, with_logprobs
from tests.server.scored_script import scored
from tests.server.scripted_engine import last

ANSWER = "Grüße, 日本 👋!"
EOS = "<|im_end|>"


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with saying(ANSWER, "") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Serving) -> InferenceClient:
    return InferenceClient(base_url=server.url, timeout=20)


def post(server: Serving, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json={"inputs": "hello", **body}, timeout=20)


def events_of(response: httpx.Response) -> list[Any]:
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def submitted(server: Serving) -> Request:
    return server.engine.submitted[-1]


def test_hugging_face_client_whole(client: InferenceClient, server: Serving) -> None:
    assert client.text_generation("hello") == ANSWER
    assert submitted(server).params.max_new_tokens == 100
    assert submitted(server).params.temperature == 0.0
    found = client.text_generation("hello", details=True, return_full_text=True)
    assert found.generated_text == "hello" + ANSWER
    assert found.details is not None
    assert found.details.finish_reason == "eos_token"
    assert found.details.generated_tokens == len(found.details.tokens)
    assert found.details.tokens[-1].special
    assert found.details.prefill == []


def test_hugging_face_client_streamed(client: InferenceClient) -> None:
    *texts, end = client.text_generation("hello", stream=True)
    assert ("".join(texts), end) == (ANSWER, EOS)
    *_, final = client.text_generation(
        "hello", stream=True, details=True, return_full_text=True, do_sample=True, seed=7
    )
    assert final.generated_text == "hello" + ANSWER
    assert final.details is not None
    assert (final.details.finish_reason, final.details.seed) == ("eos_token", 7)
    assert final.details.input_length == len(TOKENIZER.encode_text("hello"))
    assert final.index == final.details.generated_tokens


def test_hugging_face_async_client(server: Serving) -> None:
    async def texts() -> list[str]:
        async with AsyncInferenceClient(base_url=server.url, timeout=20) as client:
            stream = await client.text_generation("hello", stream=True)
            return [text async for text in stream]

    assert "".join(asyncio.run(texts())) == ANSWER + EOS


def test_hugging_face_client_raises_validation_errors(client: InferenceClient) -> None:
    with pytest.raises(ValidationError, match="best_of is not built in"):
        client.text_generation("hello", best_of=2)


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ({}, {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"top_k": 3}, {"temperature": 1.0, "top_k": 3}),
        ({"top_p": 0.5, "temperature": 0.7}, {"temperature": 0.7, "top_p": 0.5}),
        ({"repetition_penalty": 1.2, "frequency_penalty": 0.5}, {"repetition_penalty": 1.2}),
        ({"do_sample": True, "seed": 3, "max_new_tokens": 5}, {"seed": 3, "max_new_tokens": 5}),
        ({"top_n_tokens": 4}, {"logprobs": 4}),
        ({"decoder_input_details": True}, {"prompt_logprobs": 0, "logprobs": 0}),
        ({"best_of": 1, "priority": 5, "watermark": False, "timeout": 60}, {}),
    ],
)
def test_parameters(server: Serving, parameters: dict[str, Any], wanted: dict[str, Any]) -> None:
    parameters = {"max_new_tokens": 3, **parameters}
    assert post(server, "/generate", parameters=parameters).status_code == 200
    params = submitted(server).params
    assert {name: getattr(params, name) for name in wanted} == wanted


def test_grammars(server: Serving) -> None:
    schema = {"type": "integer"}
    for grammar, kind, value in (
        ({"type": "json", "value": schema}, "json_schema", json.dumps(schema)),
        ({"type": "json_schema", "value": {"schema": schema}}, "json_schema", json.dumps(schema)),
        ({"type": "regex", "value": "[a-z]+"}, "regex", "[a-z]+"),
    ):
        assert post(server, "/generate", parameters={"grammar": grammar}).status_code == 200
        assert getattr(submitted(server).params.constraint, kind) == value


@pytest.mark.parametrize("path", ["/", "/generate"])
def test_the_drawn_seed_is_told(server: Serving, path: str) -> None:
    parameters = {"do_sample": True, "details": True}
    reply = post(server, path, parameters=parameters).json()
    details = (reply[0] if path == "/" else reply)["details"]
    assert details["seed"] == submitted(server).params.seed


@pytest.mark.parametrize("path", ["/", "/generate", "/generate_stream"])
def test_a_stream_of_every_path(server: Serving, path: str) -> None:
    events = events_of(post(server, path, stream=True))
    assert [event["generated_text"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["generated_text"] == ANSWER
    assert events[-1]["details"] is None
    assert "".join(e["token"]["text"] for e in events if not e["token"]["special"]) == ANSWER


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("parameters", "text", "reason"),
    [
        ({"stop": ["日"]}, "Grüße, 日", "stop_sequence"),
        ({"stop": ["!!"]}, ANSWER, "eos_token"),
        ({"max_new_tokens": 4}, "Grü", "length"),
    ],
)
def test_how_an_answer_ends(
    server: Serving, parameters: dict[str, Any], text: str, reason: str, stream: bool
) -> None:
    """As there, a stop string stays; in a stream every event has a token, the last one too."""
    parameters = {"details": True, **parameters}
    response = post(server, "/generate", parameters=parameters, stream=stream)
    if not stream:
        reply = response.json()
    else:
        events = events_of(response)
        assert "".join(e["token"]["text"] for e in events if not e["token"]["special"]) == text
        reply = events[-1]
        assert reply["details"]["generated_tokens"] == len(events)
    assert (reply["generated_text"], reply["details"]["finish_reason"]) == (text, reason)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/generate", {"parameters": {"truncate": 5}}, "truncate is not built in"),
        ("/generate", {"parameters": {"typical_p": 0.9}}, "typical_p is not built in"),
        ("/generate", {"parameters": {"watermark": True}}, "watermark is not built in"),
        ("/generate", {"parameters": {"adapter_id": "a"}}, "adapter_id is not built in"),
        ("/generate", {"parameters": {"priority": 1}}, "priority is not built in"),
        ("/generate", {"parameters": {"num_beams": 2}}, "num_beams"),
        ("/generate", {"parameters": {"temperature": -1}}, "temperature is -1"),
        ("/generate", {"parameters": {"timeout": 0}}, "timeout"),
        ("/generate", {"parameters": {"max_new_tokens": 0}}, "max_new_tokens is 0"),
        ("/generate", {"parameters": {"grammar": {"type": "json", "value": 1}}}, "no JSON Schema"),
        ("/generate", {"parameters": {"grammar": {"type": "regex", "value": 1}}}, "regex is int"),
        ("/generate", {"inputs": ""}, "no token"),
        ("/generate", {"inputs": None}, "inputs"),
        ("/generate_stream", {"stream": False}, "send the request to /generate"),
        (
            "/generate_stream",
            {"parameters": {"decoder_input_details": True}},
            "decoder_input_details is for whole replies",
        ),
    ],
)
def test_refusals(server: Serving, path: str, body: dict[str, Any], words: str) -> None:
    response = post(server, path, **body)
    assert response.status_code == 422
    assert response.json()["error_type"] == "validation"
    assert words in response.json()["error"]


def test_the_prompt_is_scored() -> None:
    with serving(lambda request: with_logprobs(scored(request), 0)) as server:
        parameters = {"decoder_input_details": True, "max_new_tokens": 3}
        details = post(server, "/generate", parameters=parameters).json()["details"]
    first, *others = details["prefill"]
    assert first["logprob"] is None
    assert "".join(token["text"] for token in [first, *others]) == "hello"
    assert all(token["logprob"] < 0 for token in others)
    assert len(details["tokens"]) == details["generated_tokens"]


def fails_later(request: Request) -> list[TokenDelta]:
    first = TokenDelta(tuple(TOKENIZER.encode_text("so ")))
    deltas = [first, last(FinishReason.ERROR, error="code 507899")]
    return with_logprobs(deltas, request.params.logprobs)


def test_faults() -> None:
    with serving(fails_later) as server:
        whole = post(server, "/generate")
        assert (whole.status_code, whole.json()["error_type"]) == (424, "generation")
        *_, event = events_of(post(server, "/generate_stream"))
        assert event["error_type"] == "generation"
        assert "507899" in event["error"]
    with serving(fails_later, ready=False) as server:
        refused = post(server, "/generate")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error_type"] == "overloaded"


def runs_late(request: Request) -> list[TokenDelta]:
    first = TokenDelta(tuple(TOKENIZER.encode_text("so ")))
    deltas = [first, last(FinishReason.ABORT, error="its deadline passed after 1.000 s")]
    return with_logprobs(deltas, request.params.logprobs)


def test_a_timeout_ends_the_request_with_its_reason() -> None:
    with serving(runs_late) as server:
        whole = post(server, "/generate", parameters={"timeout": 1})
        assert (whole.status_code, whole.json()["error_type"]) == (429, "overloaded")
        assert "deadline passed" in whole.json()["error"]
        assert submitted(server).scheduling.deadline is not None
        *_, event = events_of(post(server, "/generate_stream", parameters={"timeout": 1}))
    assert event["error_type"] == "overloaded"
