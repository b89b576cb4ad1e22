"""POST /v1/responses over a socket, mostly through OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from omruntime.outputs import TokenDelta
from omruntime.sequence import FinishReason, Request
from tests.server.http.serving import MODEL_NAME, TOKENIZER, Serving, saying, serving
from tests.server.scripted_engine import last

ANSWER = "Grüße, 日本 👋!"
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} in <tool_call> tags\n{% endif %}"
    "{% for m in messages %}{{ m.role }}:"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content.split('</think>')[-1] }}"
    "{% for c in m.tool_calls or [] %}[{{ c.id }}={{ c.function.name }}]{% endfor %}"
    "{% endfor %}"
)
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
THINKS_AND_CALLS = f"<think>\nHm\n</think>\n\nSo: {CALL}{CALL}"
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]
IMAGE = {"type": "input_image"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with saying(ANSWER, TEMPLATE) as running:
        yield running


def client_of(server: Serving) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def post(server: Serving, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/responses", json={"input": "x", **body}, timeout=20)


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, each named by its type and numbered in turn."""
    *blocks, end = response.text.split("\n\n")
    assert end == ""
    events = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
        assert events[-1]["sequence_number"] == number
    return events


def prompt_of(server: Serving) -> str:
    return TOKENIZER.decode(server.engine.submitted[-1].prompt_token_ids, False)


def test_openai_client_whole(server: Serving) -> None:
    with client_of(server) as client:
        reply = client.responses.create(
            model=MODEL_NAME, input="hello", instructions="Be kind.", temperature=0.5, top_p=0.9
        )
    assert reply.output_text == ANSWER
    assert (reply.status, reply.object, reply.model) == ("completed", "response", MODEL_NAME)
    assert reply.usage is not None
    assert reply.usage.output_tokens == len(TOKENIZER.encode_text(ANSWER)) + 1
    assert prompt_of(server) == "system:Be kind.user:hello"
    params = server.engine.submitted[-1].params
    assert (params.temperature, params.top_p) == (0.5, 0.9)


def test_openai_client_streamed(server: Serving) -> None:
    with (
        client_of(server) as client,
        client.responses.stream(model=MODEL_NAME, input="hello") as stream,
    ):
        texts = [e.delta for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(texts) == final.output_text == ANSWER
    assert len(texts) > 5


def test_openai_async_client(server: Serving) -> None:
    async def answers() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            whole = await client.responses.create(model=MODEL_NAME, input="hello")
            stream = await client.responses.create(model=MODEL_NAME, input="hello", stream=True)
            texts = [e.delta async for e in stream if e.type == "response.output_text.delta"]
            return whole.output_text, "".join(texts)

    assert asyncio.run(answers()) == (ANSWER, ANSWER)


def test_the_order_of_events(server: Serving) -> None:
    events = events_of(post(server, stream=True))
    kinds = [event["type"] for event in events]
    assert list(dict.fromkeys(kinds)) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[0]["response"]["output"] == []
    (item,) = events[-1]["response"]["output"]
    assert events[-2]["item"] == item
    assert (item["status"], item["content"][0]["text"]) == ("completed", ANSWER)


def test_thoughts_texts_and_calls_are_items() -> None:
    with saying(THINKS_AND_CALLS, TEMPLATE) as server:
        whole = post(server, tools=TOOLS).json()
        streamed = events_of(post(server, tools=TOOLS, stream=True))
    for output in (whole["output"], streamed[-1]["response"]["output"]):
        assert [item["type"] for item in output] == [
            "reasoning",
            "message",
            "function_call",
            "function_call",
        ]
        assert output[0]["content"] == [{"type": "reasoning_text", "text": "Hm"}]
        assert output[1]["content"][0]["text"] == "So:"
        assert [item["arguments"] for item in output[2:]] == ['{"a": 1}'] * 2
        assert len({item["call_id"] for item in output[2:]}) == 2
    done = [e["item"] for e in streamed if e["type"] == "response.output_item.done"]
    assert done == streamed[-1]["response"]["output"]
    for kind, wanted in (("reasoning_text", "Hm"), ("function_call_arguments", '{"a": 1}' * 2)):
        deltas = [e["delta"] for e in streamed if e["type"] == f"response.{kind}.delta"]
        assert "".join(deltas) == wanted
    thought = THINKS_AND_CALLS.partition("</think>")[0] + "</think>"
    num_thought = whole["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert (
        num_thought
        == len(TOKENIZER.encode_text(thought)) - len(TOKENIZER.encode_text("<think>")) + 1
    )


def test_items_of_earlier_turns_become_turns(server: Serving) -> None:
    """What follows each other of the assistant is one turn, as templates expect it."""
    said = {"type": "output_text", "text": "So:"}
    thought = {"type": "reasoning_text", "text": "Hm"}
    items = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [thought]},
        {"type": "message", "role": "assistant", "content": [said]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
    ]
    assert post(server, input=items).status_code == 200
    assert prompt_of(server) == (
        "system:Be kind.user:helloassistant:<think>Hm</think>So:[c1=f][c2=g]tool:42"
    )


def test_forms_and_forced_tools_are_constraints(server: Serving) -> None:
    text = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}
    reply = post(server, text=text).json()
    assert reply["text"] == text
    for wishes in (
        {"text": text},
        {"tools": TOOLS, "tool_choice": {"type": "function", "name": "f"}},
    ):
        assert post(server, **wishes).status_code == 200
        assert server.engine.submitted[-1].params.constraint is not None
    assert post(server, text={"format": {"type": "json_object"}}).status_code == 200
    constraint = server.engine.submitted[-1].params.constraint
    assert constraint is not None
    assert constraint.json_object


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_is_incomplete(server: Serving, stream: bool) -> None:
    response = post(server, max_output_tokens=3, stream=stream)
    if stream:
        *_, last_event = events_of(response)
        assert last_event["type"] == "response.incomplete"
        reply = last_event["response"]
    else:
        reply = response.json()
    assert reply["status"] == "incomplete"
    assert reply["incomplete_details"] == {"reason": "max_output_tokens"}
    assert reply["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"store": True}, "store", "not built in"),
        ({"previous_response_id": "resp-1"}, "previous_response_id", "not built in"),
        ({"conversation": "c"}, "conversation", "not built in"),
        ({"background": True}, "background", "not built in"),
        ({"include": ["reasoning.encrypted_content"]}, "include", "not built in"),
        ({"reasoning": {"effort": "high"}}, "reasoning", "not built in"),
        ({"truncation": "auto"}, "truncation", "not built in"),
        ({"top_logprobs": 3}, "top_logprobs", "not built in"),
        ({"n": 2}, "n", "not built in"),
        ({"bad_words": ["x"]}, "bad_words", "not built in"),
        ({"tools": [{"type": "web_search"}]}, "tools", "'web_search'"),
        ({"tools": [{"type": "function", "name": "no name"}]}, "tools", "tools.0.name"),
        ({"tools": [{"type": "function"}]}, "tools", "tools.0.name"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text", "no name or no schema"),
        ({"text": {"verbosity": "low"}}, "text", "verbosity"),
        ({"input": []}, "input", "empty"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "'item_reference'"),
        ({"input": [{"content": "x"}]}, "input", "no role"),
        ({"input": [{"role": "user"}]}, "input", "no content"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input", "call_id"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input", "call_id"),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input", "takes text"),
        ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "input", "encrypted"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens is 0"),
        ({"temperature": "hot"}, "temperature", "temperature"),
    ],
)  # fmt: skip
def test_refusals(server: Serving, body: dict[str, Any], param: str | None, words: str) -> None:
    response = post(server, **body)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == param
    assert words in error["message"]


def test_what_asks_for_nothing_special_is_taken(server: Serving) -> None:
    body = {"store": False, "truncation": "disabled", "include": [], "service_tier": "auto"}
    body |= {"text": None, "reasoning": None, "metadata": {"a": "b"}, "unknown": 1}
    reply = post(server, **body).json()
    assert (reply["status"], reply["store"]) == ("completed", False)
    assert reply["metadata"] == {"a": "b"}


def fails_later(_request: Request) -> list[TokenDelta]:
    first = TokenDelta(tuple(TOKENIZER.encode_text("so ")))
    return [first, last(FinishReason.ERROR, error="code 507899")]


def test_a_fault_in_mid_stream_is_a_failed_response() -> None:
    with serving(fails_later) as server:
        assert post(server).status_code == 500
        *_, event = events_of(post(server, stream=True))
    assert (event["type"], event["response"]["status"]) == ("response.failed", "failed")
    assert "507899" in event["response"]["error"]["message"]
