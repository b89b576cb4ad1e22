"""Thoughts in chat completions over a socket, through OpenAI's own client."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from omruntime.constraint import Constraint
from server.tokenizer import Tokenizer
from tests.server.http.serving import MODEL_NAME, TOKENIZER, Serving, saying
from tests.server.tiny_tokenizers import CHAT_TEMPLATE, byte_level_backend, tokenizer_of

ASK = [{"role": "user", "content": "x"}]
_TURNS = (
    "{% if tools %}{{ tools | tojson }} in <tool_call> tags\n{% endif %}"
    "{% for m in messages %}{{ m.role }}:"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content.split('</think>')[-1] }}\n{% endfor %}assistant:"
)
# The model decides, unless it is told not to think.
QWEN = _TURNS + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
# The template has opened the thought.
R1 = _TURNS + "<think>\n"
# All that shows it is that the history loses its thoughts.
OLD_R1 = _TURNS
THOUGHT = "Hm, 1 < 2.\n\nSo 日本"
WHOLE = f"<think>\n{THOUGHT}\n</think>\n\nYes"
REST = f"{THOUGHT}\n</think>\n\nYes"
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
NAMED = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}


def ask(server: Serving, stream: bool, **wishes: Any) -> tuple[str | None, str | None, str]:
    """Thought, content and finish reason; deltas are joined."""
    body = {"model": MODEL_NAME, "messages": ASK, "stream": stream, **wishes}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        reply = client.chat.completions.create(**body)
        if not stream:
            choice = reply.choices[0]
            thought = getattr(choice.message, "reasoning_content", None)
            return thought, choice.message.content, choice.finish_reason
        choices = [chunk.choices[0] for chunk in reply]
    thoughts = [getattr(c.delta, "reasoning_content", None) or "" for c in choices]
    contents = [c.delta.content or "" for c in choices]
    if any(contents):
        first = next(at for at, text in enumerate(contents) if text)
        assert not any(thoughts[first:]), "a thought after content"
    return "".join(thoughts) or None, "".join(contents) or None, choices[-1].finish_reason


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("template", "text", "wanted"),
    [
        (QWEN, WHOLE, (THOUGHT, "Yes")),
        (QWEN, "Yes", (None, "Yes")),
        (R1, REST, (THOUGHT, "Yes")),
        (R1, WHOLE, (THOUGHT, "Yes")),
        (R1, THOUGHT, (THOUGHT, None)),
        (OLD_R1, WHOLE, (THOUGHT, "Yes")),
        (CHAT_TEMPLATE, WHOLE, (None, WHOLE)),
    ],
)
def test_the_thought_stands_apart(
    template: str, text: str, wanted: tuple[str | None, str | None], stream: bool
) -> None:
    with saying(text, template) as server:
        assert ask(server, stream) == (*wanted, "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_ends_inside_of_its_thought(stream: bool) -> None:
    with saying(WHOLE, QWEN) as server:
        assert ask(server, stream, max_tokens=12) == ("Hm, 1", None, "length")


@pytest.mark.parametrize(
    ("template", "text", "wishes", "wanted"),
    [
        (QWEN, "Yes", {"chat_template_kwargs": {"enable_thinking": False}}, (None, "Yes")),
        (R1, REST, {"separate_reasoning": False}, (None, REST)),
    ],
)
def test_wishes_of_the_request(
    template: str, text: str, wishes: dict[str, Any], wanted: tuple[str | None, str]
) -> None:
    with saying(text, template) as server:
        assert ask(server, False, extra_body=wishes) == (*wanted, "stop")


@pytest.mark.parametrize(
    ("parser", "template", "wanted"),
    [("none", QWEN, (None, WHOLE)), ("think", CHAT_TEMPLATE, (THOUGHT, "Yes"))],
)
def test_the_operator_has_the_last_word(
    parser: str, template: str, wanted: tuple[str | None, str]
) -> None:
    with saying(WHOLE, template, reasoning_parser=parser) as server:
        assert ask(server, False) == (*wanted, "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_after_a_thought(stream: bool) -> None:
    with saying(f"Call {CALL}?</think>\n\n{CALL}", R1) as server:
        found = ask(server, stream, tools=TOOLS)
    assert found == (f"Call {CALL}?", None, "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wishes", [{"response_format": SCHEMA}, NAMED])
def test_a_constraint_is_for_what_follows_the_thought(wishes: dict[str, Any], stream: bool) -> None:
    text = f"{THOUGHT}</think>7"
    with saying(text, R1) as server:
        found = ask(server, stream, **wishes)
        constraint = server.engine.submitted[-1].params.constraint
    assert found == (THOUGHT, *((None, "tool_calls") if "tools" in wishes else ("7", "stop")))
    assert constraint is not None
    assert (constraint.free_until, constraint.free_from) == ("</think>", "")


def test_a_constraint_leaves_the_choice_to_think() -> None:
    direct = {"chat_template_kwargs": {"enable_thinking": False}}
    with saying("7", QWEN) as server:
        for wishes, marks in (({}, ("</think>", "<think>")), (direct, ("", ""))):
            found = ask(server, False, response_format=SCHEMA, extra_body=wishes)
            assert found == (None, "7", "stop")
            constraint = server.engine.submitted[-1].params.constraint
            assert constraint is not None
            assert (constraint.free_until, constraint.free_from) == marks


def test_a_constraint_of_another_kind_wants_no_thought_before_it() -> None:
    wishes: dict[str, Any] = {"structured_outputs": {"choice": ["Yes", "No"]}}
    with saying("Yes", QWEN) as server:
        with pytest.raises(openai.BadRequestError, match="structured_outputs of another kind"):
            ask(server, False, extra_body=wishes)
        wishes["chat_template_kwargs"] = {"enable_thinking": False}
        assert ask(server, False, extra_body=wishes) == (None, "Yes", "stop")
        constraint = server.engine.submitted[-1].params.constraint
    assert constraint == Constraint(choices=("Yes", "No"))


def test_thoughts_are_always_told_apart_from_calls() -> None:
    body = {"messages": ASK, "separate_reasoning": False, "tools": TOOLS}
    with saying("7", R1) as server:
        refused = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=20)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "separate_reasoning"


def test_thoughts_of_earlier_turns_reach_the_template() -> None:
    history = [*ASK, {"role": "assistant", "content": "y", "reasoning_content": "Hm"}, *ASK]
    with saying("Yes", QWEN) as server:
        ask(server, False, messages=history)
        prompt = TOKENIZER.decode(server.engine.submitted[-1].prompt_token_ids, False)
    assert "<think>Hm</think>y\n" in prompt


def with_special_tags() -> Tokenizer:
    backend = byte_level_backend()
    backend.add_special_tokens(["<think>", "</think>"])
    return tokenizer_of(backend, R1)


def test_tags_that_texts_leave_out_are_told_to_the_operator(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with saying(REST, R1, tokenizer=with_special_tags()) as server:
        for _ in range(2):
            assert ask(server, False)[0] is None
        url = f"{server.url}/v1/chat/completions"
        wanted = {"messages": ASK, "separate_reasoning": True}
        refused = httpx.post(url, json=wanted, timeout=20).json()["error"]
        assert refused["param"] == "separate_reasoning"
    (said,) = [r.getMessage() for r in caplog.records if "thoughts" in r.getMessage()]
    assert "</think> is a special token" in said


def test_thoughts_cannot_be_demanded_where_texts_leave_their_tags_out() -> None:
    options = {"tokenizer": with_special_tags(), "reasoning_parser": "think"}
    with saying(REST, R1, **options) as server:
        url = f"{server.url}/v1/chat/completions"
        refused = httpx.post(url, json={"messages": ASK}, timeout=20)
    assert refused.status_code == 400
    assert "--reasoning-parser none" in refused.json()["error"]["message"]
