"""What is wrong with a body is told in the body's own names, on every route."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from omruntime.errors import FieldError, PromptTooLongError
from omruntime.sequence import Request
from server.field_names import renamed
from server.http.field_names import TGI_NAMES
from tests.server.http.serving import Serving, serving
from tests.server.scripted_engine import one_by_one

LONG = "x" * 600
TURN = {"role": "user", "content": "a"}
HUGE_SCHEMA = {"type": "object", "description": "x" * 70_000}
TOOL = {"type": "function", "function": {"name": "f", "parameters": HUGE_SCHEMA}}
# Names that only gRPC and Python have.
_OURS = (
    r"\b(max_new_tokens|min_new_tokens|include_stop|template_arguments|token_ids|constraint\.)\b"
)


def schema_format(schema: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


SHARED = [
    ({"temperature": -1}, "temperature", "temperature is -1"),
    ({"top_p": 0}, "top_p", "top_p is 0"),
    ({"top_p": 1.5}, "top_p", "top_p is 1.5"),
    ({"top_k": -2}, "top_k", "top_k is -2"),
    ({"min_p": 2}, "min_p", "min_p is 2"),
    ({"seed": -1}, "seed", "seed is -1"),
    ({"seed": 1 << 63}, "seed", "seed is 9223372036854775808"),
    ({"n": 0}, "n", "n is 0"),
    ({"n": 129}, "n", "n is 129"),
    ({"presence_penalty": 3}, "presence_penalty", "presence_penalty is 3"),
    ({"frequency_penalty": -3}, "frequency_penalty", "frequency_penalty is -3"),
    ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty is 0"),
    ({"logit_bias": {"7": 101}}, "logit_bias", "logit_bias[7] is 101"),
    ({"logit_bias": {"9999": 1}}, "logit_bias", "token id 9999"),
    ({"allowed_token_ids": [9999]}, "allowed_token_ids", "token id 9999"),
    (
        {"allowed_token_ids": [2], "stop_token_ids": [2], "min_tokens": 1},
        "allowed_token_ids",
        "min_tokens bans",
    ),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "token id -1"),
    ({"stop": ["a", ""]}, "stop", "stop holds an empty"),
    ({"stop": ["a"] * 65}, "stop", "stop has 65"),
    ({"stop": "a" * 257}, "stop", "stop[0] has 257"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "prompt_logprobs is 21"),
    ({"max_tokens": 0}, "max_tokens", "max_tokens is 0"),
    ({"max_tokens": 0, "n": 2, "prompt_logprobs": 0}, "n", "max_tokens is 0 and n is 2"),
    ({"max_tokens": 600}, "max_tokens", "lower max_tokens to"),
    ({"min_tokens": 8, "max_tokens": 7}, "min_tokens", "min_tokens is 8"),
    (
        {"response_format": {"type": "json_object"}, "ignore_eos": True},
        "ignore_eos",
        "ignore_eos is set",
    ),
    (
        {"response_format": {**schema_format({}), "type": "text"}},
        "response_format",
        "beside the type text",
    ),
    (
        {"stream_options": {"continuous_usage_stats": True}},
        "stream_options",
        "continuous_usage_stats is not built in",
    ),
    (
        {"response_format": schema_format(HUGE_SCHEMA)},
        "response_format",
        "response_format.json_schema has",
    ),
]
CHAT = [
    ({"min_tokens": 600}, "min_tokens", "lower min_tokens to"),
    ({"messages": [{"role": "x", "content": "a"}]}, "messages", "role 'x' is unknown"),
    ({"messages": [{"role": "function", "content": "a"}]}, "messages", "role function"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "max_completion_tokens is 0"),
    ({"max_completion_tokens": 600}, "max_completion_tokens", "lower max_completion_tokens"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs is 21"),
    ({"messages": [{"role": "user", "content": LONG}]}, "messages", "wanted at most 511"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "chat_template_kwargs"),
    ({"tools": [TOOL], "tool_choice": "required"}, "tools", "tools.json_schema has"),
]
COMPLETIONS = [
    ({"min_tokens": 600}, "min_tokens", "min_tokens is 600"),
    ({"logprobs": 21}, "logprobs", "logprobs is 21"),
    ({"echo": True, "logprobs": 21}, "logprobs", "logprobs is 21"),
    ({"prompt": ""}, "prompt", "prompt gives no token"),
    ({"prompt": LONG}, "prompt", "wanted at most 511"),
    ({"prompt": [1, 9999]}, "prompt", "prompt holds token id 9999"),
    ({"prompt": ["a", LONG]}, "prompt", "wanted at most 511"),
]
RESPONSES = [
    ({"temperature": -1}, "temperature", "temperature is -1"),
    ({"top_p": 0}, "top_p", "top_p is 0"),
    ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens is 0"),
    ({"max_output_tokens": 600}, "max_output_tokens", "lower max_output_tokens"),
    ({"input": []}, "input", "input is empty"),
    ({"input": LONG}, "input", "wanted at most 511"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "chat_template_kwargs"),
    ({"input": [{"role": "x", "content": "a"}]}, "input", "role 'x' is unknown"),
    (
        {
            "instructions": "be",
            "input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{"}],
        },
        "input",
        "input[0]: the arguments of 'f'",
    ),
    ({"input": [{"role": "function", "content": "a"}]}, "input", "input[0]: the role function"),
    ({"text": {"format": {"type": "text", "schema": {}}}}, "text", "beside the type text"),
    (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": HUGE_SCHEMA}}},
        "text",
        "text.format.json_schema has",
    ),
    (
        {"instructions": "be", "input": [{"role": "user", "content": "a"}] * 10_000},
        "input",
        "wanted at most",
    ),
]
TGI = [
    ({"temperature": -1}, "temperature is -1"),
    ({"top_p": 0.0}, "top_p is 0"),
    ({"max_new_tokens": 600}, "lower max_new_tokens"),
    ({"max_new_tokens": 0}, "max_new_tokens is 0"),
    ({"top_n_tokens": 21}, "top_n_tokens is 21"),
    ({"seed": -1}, "seed is -1"),
    ({"stop": [""]}, "stop holds an empty"),
    ({"repetition_penalty": 0.0}, "repetition_penalty is 0"),
    ({"grammar": {"type": "regex", "value": 1}}, "grammar.regex is int"),
    ({"grammar": {"type": "json", "value": HUGE_SCHEMA}}, "grammar.json_schema has"),
]
BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
}
ROWS = [
    *(("/v1/chat/completions", *row) for row in [*SHARED, *CHAT]),
    *(("/v1/completions", *row) for row in [*SHARED, *COMPLETIONS]),
    *(("/v1/responses", *row) for row in RESPONSES),
]
# Streams are refused before their first event; prompt_logprobs is for whole replies.
CASES = [
    pytest.param(*row, stream, id=f"{row[0].removeprefix('/v1/')}-{row[3][:40]}-{stream}")
    for row in ROWS
    for stream in (False, True)
    if not (stream and "prompt_logprobs" in row[1])
]


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    def says_a(_request: Request) -> Any:
        return one_by_one([7, 2])

    with serving(says_a) as running:
        yield running


@pytest.mark.parametrize(("path", "body", "param", "words", "stream"), CASES)
def test_openai_routes(
    server: Serving, path: str, body: dict[str, Any], param: str, words: str, stream: bool
) -> None:
    response = httpx.post(f"{server.url}{path}", json={**BASES[path], **body, "stream": stream})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param, error
    assert words in error["message"]
    assert not re.search(_OURS, error["message"]), error


@pytest.mark.parametrize("path", ["/", "/generate", "/generate_stream"])
@pytest.mark.parametrize(("parameters", "words"), TGI)
def test_tgi_routes(server: Serving, path: str, parameters: dict[str, Any], words: str) -> None:
    body = {"inputs": "a", "parameters": parameters}
    response = httpx.post(f"{server.url}{path}", json=body)
    assert response.status_code == 422, response.text
    assert words in response.json()["error"]
    assert "constraint" not in response.json()["error"]


def test_an_id_to_detokenize(server: Serving) -> None:
    response = httpx.post(f"{server.url}/detokenize", json={"tokens": [9999]})
    error = response.json()["error"]
    assert (error["param"], error["message"][:11]) == ("tokens", "tokens hold")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"prompt": "a", "add_special_token": False}, "add_special_token"),
        ("/tokenize", {"text": "a"}, "text"),
        ("/tokenize", {"prompt": "a", "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ("/tokenize", {"prompt": "a", "messages": [TURN]}, "prompt"),
        (
            "/tokenize",
            {"messages": [TURN], "add_generation_prompt": False},
            "add_generation_prompt",
        ),
        ("/detokenize", {"tokens": [7], "skip_special_token": True}, "skip_special_token"),
    ],
)
def test_what_would_have_no_effect_is_refused(
    server: Serving, path: str, body: dict[str, Any], param: str
) -> None:
    response = httpx.post(f"{server.url}{path}", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_a_missing_field_is_told_beside_what_may_stand_for_it(server: Serving) -> None:
    response = httpx.post(f"{server.url}/generate", json={"prompt": "a", "max_tokens": 1})
    wanted = "inputs is missing; set it; no fields here: prompt, max_tokens"
    assert response.json()["error"] == wanted


def test_a_prompt_too_long_has_openais_code(server: Serving) -> None:
    response = httpx.post(f"{server.url}/v1/completions", json={"prompt": LONG})
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_an_error_that_requests_share_is_left_as_it_is() -> None:
    shared = FieldError("constraint", "constraint.regex is too long")
    assert str(renamed(shared, TGI_NAMES)) == "grammar.regex is too long"
    assert (shared.param, str(shared)) == ("constraint", "constraint.regex is too long")
    assert isinstance(renamed(PromptTooLongError("x", "prompt"), TGI_NAMES), PromptTooLongError)
