"""Constraints on their way in: gRPC messages, the client's flags, HTTP bodies."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omruntime.constraint import Constraint
from omruntime.errors import RequestError
from omruntime.outputs import TokenDelta
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason, Request
from server.client import Client
from server.grpc_messages import sampling_params_from, sampling_params_to
from server.pb import inference_pb2 as pb
from server.terminal.options import add_sampling_flags, sampling_params_of
from tests.server.http.serving import MODEL_NAME, Serving, serving
from tests.server.scripted_engine import last

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"größe": {"type": "integer"}}}

texts = st.text(min_size=1, max_size=8)
constraints = st.one_of(
    st.builds(Constraint, json_schema=texts),
    st.just(Constraint(json_object=True)),
    st.builds(Constraint, regex=texts),
    st.builds(Constraint, grammar=texts),
    st.builds(Constraint, choices=st.lists(texts, min_size=1, max_size=3).map(tuple)),
)


@given(constraints)
def test_constraints_survive_the_wire(constraint: Constraint) -> None:
    message = sampling_params_to(SamplingParams(constraint=constraint))
    sent = pb.SamplingParams.FromString(message.SerializeToString())
    assert sampling_params_from(sent) == SamplingParams(constraint=constraint)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (pb.Constraint(), "sets nothing, wanted exactly one of json_schema"),
        (pb.Constraint(choices=pb.Choices()), "choices has 0 texts"),
        (pb.Constraint(choices=pb.Choices(texts=["a", ""])), r"choices\[1\] is empty"),
        (pb.Constraint(regex=""), "regex is empty"),
    ],
)
def test_messages_that_say_nothing_are_refused(message: pb.Constraint, words: str) -> None:
    """BL-40."""
    with pytest.raises(RequestError, match=words):
        sampling_params_from(pb.SamplingParams(constraint=message))


def parse(*argv: str) -> Constraint | None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_sampling_flags(parser)
    return sampling_params_of(parser.parse_args(argv)).constraint


def test_each_kind_has_a_flag(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("größe", encoding="utf-8")
    assert parse() is None
    assert parse("--json-schema", str(path)) == Constraint(json_schema="größe")
    assert parse("--grammar", str(path)) == Constraint(grammar="größe")
    assert parse("--json-object") == Constraint(json_object=True)
    assert parse("--regex", "a+") == Constraint(regex="a+")
    assert parse("--choices", "yes", "no") == Constraint(choices=("yes", "no"))


@pytest.mark.parametrize(
    "argv",
    [
        ("--regex", "a", "--json-object"),
        ("--json-schema", "/nowhere/at-all.json"),
        ("--choices",),
    ],
)
def test_wrong_flags_are_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(argparse.ArgumentError):
        parse(*argv)


def says_nothing(_request: Request) -> list[TokenDelta]:
    return [last(FinishReason.STOP, 2)]


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(says_nothing) as running:
        yield running


def constraint_of(server: Serving) -> Constraint | None:
    """Of the request that came last."""
    return server.engine.submitted[-1].params.constraint


def post(server: Serving, path: str, wanted: object) -> httpx.Response:
    body = {"response_format": wanted, "messages": HELLO, "prompt": "hello"}
    body.pop("prompt" if path.startswith("chat") else "messages")
    return httpx.post(f"{server.url}/v1/{path}", json=body, timeout=20)


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize(
    ("wanted", "constraint"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, Constraint(json_object=True)),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": True}},
            Constraint(json_schema="true"),
        ),
    ],
)
def test_formats_reach_the_engine(
    server: Serving, path: str, wanted: object, constraint: Constraint | None
) -> None:
    assert post(server, path, wanted).status_code == 200
    assert constraint_of(server) == constraint


def structured(path: str, wanted: object, **others: object) -> dict[str, object]:
    body = {"structured_outputs": wanted, "messages": HELLO, "prompt": "hello", **others}
    body.pop("prompt" if path.startswith("chat") else "messages")
    return body


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize(
    ("wanted", "constraint"),
    [
        ({"choice": ["yes", "no"]}, Constraint(choices=("yes", "no"))),
        ({"regex": "[0-9]+", "json": None, "disable_fallback": False}, Constraint(regex="[0-9]+")),
        ({"grammar": 'start: "a"'}, Constraint(grammar='start: "a"')),
        ({"json": {"type": "null"}}, Constraint(json_schema='{"type": "null"}')),
        ({"json": '{"type": "null"}'}, Constraint(json_schema='{"type": "null"}')),
        ({"json_object": True}, Constraint(json_object=True)),
        ({}, None),
    ],
)
def test_structured_outputs_reach_the_engine(
    server: Serving, path: str, wanted: object, constraint: Constraint | None
) -> None:
    body = structured(path, wanted)
    assert httpx.post(f"{server.url}/v1/{path}", json=body, timeout=20).status_code == 200
    assert constraint_of(server) == constraint


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"choice": ["a"], "regex": "a"}, "structured_outputs sets choice, regex, wanted one"),
        ({"whitespace_pattern": " "}, "structured_outputs.whitespace_pattern is not built in"),
        ({"choice": "yes"}, "structured_outputs.choice is str, wanted a list"),
        ({"choice": ["a", 7]}, "structured_outputs.choice is 7 (int), wanted a string"),
        ({"regex": 7}, "structured_outputs.regex is int"),
        ({"json_object": 0}, "structured_outputs.json_object is 0 (int), wanted True or False"),
        ({"json": False, "regex": "a"}, "structured_outputs sets json, regex, wanted one"),
        ({"json": "a" * 70_000}, "structured_outputs.json has 70000 characters"),
    ],
)
def test_wrong_structured_outputs_are_named(
    server: Serving, path: str, wanted: object, words: str
) -> None:
    body = structured(path, wanted)
    response = httpx.post(f"{server.url}/v1/{path}", json=body, timeout=20)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "structured_outputs")
    assert error["message"].startswith(words)


@pytest.mark.parametrize(
    "other",
    [
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
    ],
)
def test_structured_outputs_stand_alone(server: Serving, other: dict[str, object]) -> None:
    body = structured("chat/completions", {"choice": ["a"]}, **other)
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=20)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "structured_outputs"


def test_a_schema_reaches_the_engine_in_its_order(server: Serving) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        client.chat.completions.create(
            model=MODEL_NAME,
            messages=HELLO,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
            },
        )
    constraint = constraint_of(server)
    assert constraint is not None
    assert constraint.json_schema is not None
    assert json.loads(constraint.json_schema) == SCHEMA


def named(**fields: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": fields}


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"type": "json_schema"}, "response_format.json_schema is missing"),
        (named(schema={}), "response_format.json_schema.name"),
        (named(name="n"), "response_format.json_schema.schema"),
        (named(name="n", schema=None), "response_format.json_schema.schema"),
        (named(name="n", schema=[]), "response_format.json_schema.schema"),
        (named(name="n", schema={}, strict="yes"), "response_format.json_schema.strict"),
        (named(name="n", schema={}, shema={}), "response_format.json_schema.shema"),
        (named(name="n", schema={"const": "a" * 70_000}), "at most 65536"),
        ({"type": "xml"}, "response_format.type"),
        ("json", "response_format"),
    ],
)
def test_wrong_formats_are_named(server: Serving, path: str, wanted: object, words: str) -> None:
    """BL-40: schema null, name missing and the like are 400 with the parameter."""
    before = len(server.engine.submitted)
    response = post(server, path, wanted)
    assert response.status_code == 400
    error = response.json()["error"]
    assert words in error["message"]
    assert error["param"] == "response_format"
    assert len(server.engine.submitted) == before


def test_a_nest_without_end_is_refused(server: Serving) -> None:
    """BL-40: 2000-deep nesting is 400, no traceback, and the server goes on."""
    nest = '{"items":' * 2000 + "{}" + "}" * 2000
    wanted = f'{{"type":"json_schema","json_schema":{{"name":"n","schema":{nest}}}}}'
    body = f'{{"messages":[{{"role":"user","content":"a"}}],"response_format":{wanted}}}'
    response = httpx.post(f"{server.url}/v1/chat/completions", content=body, timeout=20)
    assert response.status_code == 400
    assert post(server, "completions", None).status_code == 200


@pytest.mark.parametrize(
    "name",
    ["guided_json", "guided_regex", "guided_choice", "guided_grammar", "regex", "priority"],
)
def test_other_names_for_it_are_refused_by_name(server: Serving, name: str) -> None:
    """BL-32: a field that would change the answer is not ignored."""
    body = {"messages": HELLO, name: {"regex": "a"}}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=20)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name


def test_a_free_beginning_is_not_lost_on_the_way() -> None:
    """It has no field yet, so it cannot be sent."""
    params = SamplingParams(constraint=Constraint(json_object=True, free_until="</think>"))
    with Client("localhost:1") as nowhere, pytest.raises(RequestError, match="cannot be sent"):
        nowhere.generate("x", params)
