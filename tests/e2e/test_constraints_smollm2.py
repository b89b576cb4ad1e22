"""Constrained answers of SmolLM2 through a real server, by OpenAI's client and over gRPC."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import httpx
import jsonschema
import openai
import pytest

from omruntime.constraint import Constraint
from omruntime.errors import CallError
from omruntime.grammar.llguidance_compiler import open_compiler
from omruntime.manifest import Manifest
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from server.client import AsyncClient, Client
from server.text import TextDelta
from tests.e2e.server_child import ServerChild
from tests.omruntime.grammar.schema_maker import Schema, make_schemas

NUM_SCHEMAS = 200
CONCURRENCY = 32
# Most answers end before; what a schema leaves open, a small model fills.
MAX_NEW_TOKENS = 32
ASK = "An example: "


# Whose fixture looks whether the server is idle afterwards.
pytestmark = pytest.mark.usefixtures("client")


def schema_of(made: Schema) -> Constraint:
    return Constraint(json_schema=json.dumps(made))


def test_answers_to_200_schemas_validate(server: ServerChild, smollm2_bundle: Path) -> None:
    """BL-40: every finished answer validates; every one that was cut is the beginning of one."""
    schemas = make_schemas(NUM_SCHEMAS, seed=20, depth=1)
    answers = asyncio.run(_answer_all(server, schemas))
    compiler = open_compiler(smollm2_bundle, Manifest.read(smollm2_bundle).model)
    num_finished = 0
    for made, answer in zip(schemas, answers, strict=True):
        if answer.finish_reason is FinishReason.STOP:
            num_finished += 1
            jsonschema.Draft202012Validator(made).validate(json.loads(answer.text))
            continue
        assert answer.finish_reason is FinishReason.LENGTH, answer.error
        matcher = compiler.compile(schema_of(made)).new_matcher()
        for token_id in answer.token_ids:
            assert matcher.allowed()[token_id], (made, answer.text)
            matcher.accept(token_id)
    assert num_finished > NUM_SCHEMAS * 3 // 4


async def _answer_all(server: ServerChild, schemas: list[Schema]) -> list[TextDelta]:
    slots = asyncio.Semaphore(CONCURRENCY)
    async with AsyncClient(server.target) as client:

        async def answer(number: int, made: Schema) -> TextDelta:
            params = SamplingParams(
                temperature=0.8,
                seed=number,
                max_new_tokens=MAX_NEW_TOKENS,
                constraint=schema_of(made),
            )
            async with slots:
                generation = await client.generate(ASK, params)
            return generation.answers[0]

        return await asyncio.gather(*map(answer, range(len(schemas)), schemas))


PERSON: Schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "born": {"type": "string", "format": "date"},
    },
    "required": ["name", "age", "born"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True])
def test_openai_client_with_a_schema(server: ServerChild, stream: bool) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        reply = client.chat.completions.create(
            model="SmolLM2-135M-Instruct",
            messages=[{"role": "user", "content": "Describe Ada Lovelace."}],
            temperature=0,
            max_completion_tokens=80,
            stream=stream,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "person", "schema": PERSON, "strict": True},
            },
        )
        if stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in reply)
        else:
            assert reply.choices[0].finish_reason == "stop"
            text = reply.choices[0].message.content
    jsonschema.Draft202012Validator(
        PERSON, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    ).validate(json.loads(text))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "integer", "multipleOf": 0.5}, "multipleOf"),
        ({"$ref": "#"}, "$ref"),
        ({"type": "string", "pattern": "(?<!a)b"}, "pattern"),
        ({"oneOf": [{}, {"type": "null"}]}, "oneOf"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "json_schema"),
    ],
)
def test_refusals_over_http_name_the_keyword(
    server: ServerChild, schema: Schema, words: str
) -> None:
    """BL-40: 400 before any token; over gRPC INVALID_ARGUMENT with the same words."""
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    body = {"messages": [{"role": "user", "content": ASK}], "response_format": wanted}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format"
    assert words in response.json()["error"]["message"]
    with Client(server.target) as client, pytest.raises(CallError, match=re.escape(words)) as told:
        client.generate(ASK, SamplingParams(constraint=schema_of(schema)))
    assert told.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("multiple", [7, 12])
def test_multiples_are_enforced(server: ServerChild, multiple: int) -> None:
    """BL-40: multipleOf."""
    made = {"type": "integer", "multipleOf": multiple, "minimum": 1, "maximum": 100_000}
    with Client(server.target) as client:
        params = SamplingParams(temperature=1.0, seed=multiple, n=4, constraint=schema_of(made))
        for answer in client.generate("The number is ", params).answers:
            assert int(answer.text) % multiple == 0


def test_grpc_regex_and_choices(server: ServerChild) -> None:
    regex = SamplingParams(
        temperature=1.0, seed=1, n=3, constraint=Constraint(regex="[A-Z]{3}-\\d")
    )
    choices = SamplingParams(temperature=0.0, constraint=Constraint(choices=("Paris", "London")))
    with Client(server.target) as client:
        answers = client.generate("The code is ", regex).answers
        assert all(re.fullmatch(r"[A-Z]{3}-\d", answer.text) for answer in answers)
        assert {answer.finish_reason for answer in answers} == {FinishReason.STOP}
        assert len({answer.text for answer in answers}) > 1
        assert client.generate("The capital of France is ", choices).answers[0].text == "Paris"


def test_characters_of_many_tokens_arrive_whole(server: ServerChild) -> None:
    """BL-19: no delta ends inside a character, and the joined ones are the choice."""
    choice = "🦙👩‍👩‍👧‍👦龘"
    params = SamplingParams(temperature=0.0, constraint=Constraint(choices=(choice,)))
    with Client(server.target) as client:
        texts = [delta.text for delta in client.stream("Say: ", params)]
    assert "".join(texts) == choice
    assert not any("\ufffd" in text for text in texts)


def test_any_object_over_http(server: ServerChild) -> None:
    body = {
        "messages": [{"role": "user", "content": "Reply with a JSON object."}],
        "response_format": {"type": "json_object"},
        "max_tokens": 64,
        "temperature": 0,
    }
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
    choice = reply["choices"][0]
    assert choice["message"]["content"].startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)
