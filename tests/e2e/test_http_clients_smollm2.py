"""Other people's HTTP clients against SmolLM2: the same answers as over our own service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from huggingface_hub import InferenceClient
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict, Field

from omruntime.sampling_params import SamplingParams
from server.client import Client
from server.text import ChatMessage
from tests.e2e.server_child import ServerChild

MODEL = "SmolLM2-135M-Instruct"
QUESTION = "Name three fruits."
ASK: Any = [{"role": "user", "content": QUESTION}]
GREEDY: Any = {"model": MODEL, "temperature": 0}
LIMIT = 12
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION = {"name": "forecast", "description": "The weather of a city.", "parameters": CITY}


class Forecast(BaseModel):
    """The weather of a city."""

    # What a schema leaves open, a small model fills up to the limit.
    model_config = ConfigDict(extra="forbid")
    city: str = Field(max_length=20)
    days: int = Field(ge=1, le=14)


@pytest.fixture
def wanted(client: Client) -> str:
    """The greedy answer over gRPC."""
    params = SamplingParams(temperature=0.0, max_new_tokens=LIMIT)
    return client.generate([ChatMessage("user", QUESTION)], params).answers[0].text


@pytest.fixture
def sdk(server: ServerChild) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


@pytest.fixture
def chain(server: ServerChild) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{server.url}/v1", api_key="none", model=MODEL, temperature=0, max_retries=0
    )


def test_openai_chat(sdk: openai.OpenAI, wanted: str) -> None:
    create = sdk.chat.completions.create
    whole = create(**GREEDY, messages=ASK, max_completion_tokens=LIMIT)
    assert whole.choices[0].message.content == wanted
    stream = create(**GREEDY, messages=ASK, max_completion_tokens=LIMIT, stream=True)
    texts = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(texts) == wanted
    assert len(texts) > LIMIT // 2


def test_openai_responses(sdk: openai.OpenAI, wanted: str) -> None:
    create = sdk.responses.create
    assert create(**GREEDY, input=QUESTION, max_output_tokens=LIMIT).output_text == wanted
    stream = create(**GREEDY, input=ASK, max_output_tokens=LIMIT, stream=True)
    deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(deltas) == wanted
    form: Any = {"format": {"type": "json_schema", "name": "forecast", "schema": CITY}}
    formed = create(**GREEDY, input="Oslo, three days.", max_output_tokens=60, text=form)
    jsonschema.Draft202012Validator(CITY).validate(json.loads(formed.output_text))


def test_openai_async_client_with_four_at_once(
    server: ServerChild, client: Client, wanted: str
) -> None:
    async def answers() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as sdk:

            async def streamed() -> str:
                stream = await sdk.chat.completions.create(
                    **GREEDY, messages=ASK, max_completion_tokens=LIMIT, stream=True
                )
                return "".join([c.choices[0].delta.content or "" async for c in stream])

            return await asyncio.gather(*(streamed() for _ in range(4)))

    assert asyncio.run(answers()) == [wanted] * 4


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_tool_is_called_with_valid_arguments(sdk: openai.OpenAI, stream: bool) -> None:
    reply: Any = sdk.chat.completions.create(
        **GREEDY,
        messages=[{"role": "user", "content": "The weather in Oslo for three days?"}],
        tools=[{"type": "function", "function": FUNCTION}],  # type: ignore[list-item]
        tool_choice={"type": "function", "function": {"name": "forecast"}},
        max_completion_tokens=60,
        stream=stream,
    )
    if stream:
        calls = [call for chunk in reply for call in chunk.choices[0].delta.tool_calls or []]
        name, text = calls[0].function.name, "".join(c.function.arguments for c in calls)
    else:
        assert reply.choices[0].finish_reason == "tool_calls"
        function = reply.choices[0].message.tool_calls[0].function
        name, text = function.name, function.arguments
    assert name == "forecast"
    jsonschema.Draft202012Validator(CITY).validate(json.loads(text))


def test_langchain(chain: ChatOpenAI, wanted: str) -> None:
    limited = chain.bind(max_completion_tokens=LIMIT)
    assert limited.invoke([HumanMessage(QUESTION)]).content == wanted
    assert "".join(str(chunk.content) for chunk in limited.stream(QUESTION)) == wanted


def test_langchain_structured_output_and_tools(chain: ChatOpenAI) -> None:
    formed = chain.with_structured_output(Forecast).invoke("Oslo, three days.")
    assert isinstance(formed, Forecast)
    bound = chain.bind_tools([Forecast], tool_choice="Forecast")
    message = bound.invoke("The weather in Oslo for three days?")
    assert isinstance(message, AIMessage)
    (call,) = message.tool_calls
    assert call["name"] == "Forecast"
    Forecast(**call["args"])


def test_hugging_face(server: ServerChild, client: Client) -> None:
    prompt = "The capital of France is"
    params = SamplingParams(temperature=0.0, max_new_tokens=12, repetition_penalty=1.0)
    wanted = client.generate(prompt, params).answers[0].text
    theirs = InferenceClient(base_url=server.url)
    whole = theirs.text_generation(
        prompt, max_new_tokens=12, details=True, decoder_input_details=True, top_n_tokens=2
    )
    assert whole.generated_text == wanted
    assert whole.details is not None
    assert "".join(token.text for token in whole.details.prefill) == prompt
    assert [len(top) for top in whole.details.top_tokens or []] == [2] * 12
    streamed = theirs.text_generation(prompt, max_new_tokens=12, stream=True)
    assert "".join(streamed) == wanted
