"""Tools of chat completions over a socket, through OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.server.http.serving import MODEL_NAME, TOKENIZER, Serving, saying
from tests.server.tiny_tokenizers import CHAT_TEMPLATE

ASK = [{"role": "user", "content": "x"}]
HERMES = (
    "{% if tools %}{{ tools | tojson }} in <tool_call> tags\n{% endif %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}"
    "{% for k, v in c.function.arguments.items() %}[{{ k }}={{ v }}]{% endfor %}{% endfor %}\n"
    "{% endfor %}"
)
LLAMA = (
    "{% if tools %}{{ tools | tojson }} Respond in the format "
    '{"name": function name, "parameters": dictionary}\n{% endif %}' + CHAT_TEMPLATE
)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ARGUMENTS = '{"city": "Pa\\"}ris", "in": [{"a": 1}]}'


def tool(name: str, parameters: dict[str, Any] = CITY) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("f"), tool("g")]
NAMED = {"type": "function", "function": {"name": "f"}}


def call(name: str, arguments: str = ARGUMENTS, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def ask(server: Serving, stream: bool, **wishes: Any) -> tuple[str, list[tuple[str, str]], str]:
    """Content, calls and finish reason; a stream is checked and joined."""
    body = {"model": MODEL_NAME, "messages": ASK, "tools": TOOLS, "stream": stream, **wishes}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        reply = client.chat.completions.create(**body)
        if not stream:
            choice = reply.choices[0]
            calls = choice.message.tool_calls or []
            assert len({c.id for c in calls}) == len(calls)
            found = [(c.function.name, c.function.arguments) for c in calls]
            return choice.message.content or "", found, choice.finish_reason
        content, opened, reason = "", [], ""
        for chunk in reply:
            choice = chunk.choices[0]
            content += choice.delta.content or ""
            for part in choice.delta.tool_calls or []:
                if part.id is not None:
                    assert (part.type, part.index) == ("function", len(opened))
                    opened.append([part.function.name, ""])
                else:
                    assert part.type is None
                    assert part.function.name is None
                opened[part.index][1] += part.function.arguments
            reason = choice.finish_reason or reason
        return content, [(name, arguments) for name, arguments in opened], reason


def hermes(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in calls)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("template", "text", "content"),
    [
        (HERMES, "Let me < see.\n" + hermes(call("f"), call("g")), "Let me < see."),
        (HERMES, hermes(f'{{"arguments": {ARGUMENTS}, "name": "f"}}', call("g")), ""),
        (HERMES, hermes(call("f", json.dumps(ARGUMENTS)), call("g")), ""),
        (LLAMA, call("f", key="parameters") + "; " + call("g", key="parameters"), ""),
        (LLAMA, "<|python_tag|>" + call("f") + ";" + call("g"), ""),
    ],
)
def test_two_parallel_calls(template: str, text: str, content: str, stream: bool) -> None:
    """BL-36."""
    with saying(text, template) as server:
        found = ask(server, stream)
    assert found == (content, [("f", ARGUMENTS), ("g", ARGUMENTS)], "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("template", "text"),
    [
        (HERMES, "no call < here <tool"),
        (HERMES, hermes(call("unknown"))),
        (HERMES, "<tool_call>nonsense</tool_call> and more"),
        (HERMES, '<tool_call>{"name": "f'),
        (LLAMA, "plain; text"),
        (LLAMA, '{"answer": 42} indeed'),
        (LLAMA, '{"answer'),
    ],
)
def test_what_is_no_call_stays_text(template: str, text: str, stream: bool) -> None:
    with saying(text, template) as server:
        assert ask(server, stream) == (text, [], "stop")


DEEP = "[" * 5000 + "]" * 5000


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "f", "arguments": "\\ud83d"}', "\ufffd"),
        ('{"name": "f", "parameters": {"a": 1}, "arguments": {"b": 22222}}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": 1}, "arguments": {"b": 22222}}', '{"a": 1}'),
        (f'{{"name": {DEEP}, "arguments": {{}}}}', None),
    ],
    ids=["half of a character", "two kinds of arguments", "twice", "deep"],
)
def test_odd_calls_end_in_an_answer(body: str, arguments: str | None, stream: bool) -> None:
    """Models write what they like: what is no call stays text, and what is one can be sent."""
    with saying(hermes(body), HERMES) as server:
        content, calls, _ = ask(server, stream)
    if arguments is None:
        assert (content, calls) == (hermes(body), [])
    else:
        assert (content, calls) == ("", [("f", arguments)])


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_tool_is_enforced(stream: bool) -> None:
    """BL-36: also where the template knows no tools, which are then told to the model."""
    with saying(ARGUMENTS, CHAT_TEMPLATE) as server:
        assert ask(server, stream, tool_choice=NAMED) == ("", [("f", ARGUMENTS)], "tool_calls")
        submitted = server.engine.submitted[-1]
        assert submitted.params.constraint is not None
        assert json.loads(submitted.params.constraint.json_schema or "") == CITY
        assert '"name": "g"' in TOKENIZER.decode(submitted.prompt_token_ids, False)
        cut = ask(server, stream, tool_choice=NAMED, max_tokens=5)
        assert cut == ("", [("f", ARGUMENTS[:5])], "length")


@pytest.mark.parametrize("stream", [False, True])
def test_required_calls_are_enforced(stream: bool) -> None:
    with saying(f"[{call('f')}, {call('g')}]", HERMES) as server:
        found = ask(server, stream, tool_choice="required")
        assert found == ("", [("f", ARGUMENTS), ("g", ARGUMENTS)], "tool_calls")
        constraint = server.engine.submitted[-1].params.constraint
        assert constraint is not None
        schema = json.loads(constraint.json_schema or "")
        names = [one["properties"]["name"] for one in schema["items"]["anyOf"]]
        assert names == [{"const": "f"}, {"const": "g"}]
        ask(server, stream, tool_choice="required", parallel_tool_calls=False)
        constraint = server.engine.submitted[-1].params.constraint
        assert constraint is not None
        assert json.loads(constraint.json_schema or "")["maxItems"] == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("template", "text", "content"),
    [
        (HERMES, "Let me see.\n" + hermes(call("f"), call("g")), "Let me see."),
        (HERMES, hermes("nonsense", call("f"), call("g")), "<tool_call>\nnonsense\n</tool_call>"),
        (LLAMA, call("f", key="parameters") + "; " + call("g", key="parameters"), ""),
    ],
)
def test_one_call_ends_the_answer_where_several_are_not_wanted(
    template: str, text: str, content: str, stream: bool
) -> None:
    """Nothing is generated and then left out."""
    with saying(text, template) as server:
        found = ask(server, stream, parallel_tool_calls=False)
        assert found == (content, [("f", ARGUMENTS)], "tool_calls")
        assert server.engine.cancelled == [server.engine.submitted[0].request_id]
        free = ask(server, stream, tools=None, parallel_tool_calls=False)
        assert free == (text, [], "stop")


def test_definitions_of_required_tools_keep_apart() -> None:
    made = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {}}}
    with saying("[]", HERMES) as server:
        ask(server, False, tools=[tool("f", made), tool("g", made)], tool_choice="required")
        constraint = server.engine.submitted[-1].params.constraint
    assert constraint is not None
    schema = json.loads(constraint.json_schema or "")
    assert sorted(schema["$defs"]) == ["defs0_A", "defs1_A"]
    second = schema["items"]["anyOf"][1]["properties"]["arguments"]
    assert second["properties"]["a"] == {"$ref": "#/$defs/defs1_A"}


@pytest.mark.parametrize("stream", [False, True])
def test_none_yields_none(stream: bool) -> None:
    """BL-36."""
    with saying(hermes(call("f")), HERMES) as server:
        assert ask(server, stream, tool_choice="none") == (hermes(call("f")), [], "stop")


@pytest.mark.parametrize("arguments", ['{"city":"Paris"}', "", {"city": "Paris"}])
def test_calls_in_the_history(arguments: Any) -> None:
    """BL-16, BL-17: null is empty, arguments are decoded once."""
    function = {"name": "f", "arguments": arguments}
    history = [
        *ASK,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    with saying("ok", HERMES) as server:
        assert ask(server, False, messages=history)[0] == "ok"
        prompt = TOKENIZER.decode(server.engine.submitted[-1].prompt_token_ids, False)
    wanted = '{"city": "Paris"}[city=Paris]' if arguments else "{}"
    assert prompt.endswith(f"user:xassistant:{wanted}tool:42")


def test_calls_that_the_template_leaves_out_are_told_in_their_turn() -> None:
    """Otherwise a model would read results of calls that it never made."""
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for i, name in enumerate("fg")
    ]
    history = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": calls[:1]},
        {"role": "tool", "tool_call_id": "c0", "content": "42"},
        {"role": "assistant", "content": "Now g.", "tool_calls": calls[1:]},
    ]
    with saying("ok", CHAT_TEMPLATE) as server:
        assert ask(server, False, messages=history, tools=None)[0] == "ok"
        prompt = TOKENIZER.decode(server.engine.submitted[-1].prompt_token_ids, False)
    first, second = (f"[{call(name, '{}')}]" for name in "fg")
    assert first in prompt
    assert f"Now g.\n{second}" in prompt


@pytest.mark.parametrize(
    ("template", "wishes", "words"),
    [
        (CHAT_TEMPLATE, {}, "knows no tools"),
        ("{{ tools }}" + CHAT_TEMPLATE, {}, "--tool-parser"),
        (HERMES, {"tool_choice": {"type": "function", "function": {"name": "h"}}}, "'h'"),
        (HERMES, {"tools": None, "tool_choice": "required"}, "set tools"),
        (HERMES, {"tools": [tool("f"), tool("f")]}, "twice"),
        (HERMES, {"tools": [tool("no name")]}, "tools"),
        (HERMES, {"response_format": {"type": "json_object"}}, "response_format"),
        (HERMES, {"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        (
            HERMES,
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "f", "arguments": "not json"}}],
                    }
                ]
            },
            "no JSON object",
        ),
    ],
)
def test_refusals(template: str, wishes: dict[str, Any], words: str) -> None:
    """BL-17, BL-36: 400, by name."""
    with saying("x", template) as server:
        body = {"messages": ASK, "tools": TOOLS, **wishes}
        response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=20)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]
