"""Tools of a chat request: what the template is given, what the answer is held to, who reads it.

How a model writes its calls down is found by rendering its template with a tool, unless the
operator says so. A tool that must be called is enforced by a constraint, so its arguments
validate; then the template need not know tools, and they are told in a system message.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from omruntime.constraint import Constraint
from omruntime.errors import FieldError, RequestError
from server.http.call_parser import CallParser, HermesCalls, JsonCalls, NamedCall
from server.http.gateway import Gateway
from server.http.schema import ChatBody, NamedTool, Tool
from server.text import ChatMessage

_PROBE = "omserve_probe"
# As long as the one template that looks at it wants: Mistral's.
_PROBE_ID = "omserve00"
_PARSERS: dict[str, Callable[[frozenset[str]], CallParser]] = {
    "hermes": HermesCalls,
    "llama3": JsonCalls,
}
_SYSTEM = "You can call these tools, described in JSON, one a line:\n"


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """How one request uses its tools.

    Attributes:
        template_tools: For the template's `tools`; None when it knows none.
        constraint: None: the model is free to call or not.
        new_parser: Makes the parser of one answer.
        is_parallel: Whether an answer may hold more than one call.
    """

    template_tools: list[dict[str, Any]] | None
    constraint: Constraint | None
    new_parser: Callable[[], CallParser]
    is_parallel: bool


async def plan_tools(body: ChatBody, gateway: Gateway) -> ToolPlan | None:
    """The plan of a request; None when no tool may be called.

    Raises:
        FieldError: Tools and choice do not fit each other, or the template knows no tools.
    """
    choice = body.tool_choice
    if not body.tools:
        if choice not in (None, "none", "auto"):
            raise FieldError("tool_choice", "tool_choice is set without tools; set tools")
        return None
    names = frozenset(tool.function.name for tool in body.tools)
    if len(names) < len(body.tools):
        raise FieldError("tools", "tools has a name twice, wanted each once")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise FieldError(
            "tool_choice", f"tool_choice names {choice.function.name!r}, which tools does not hold"
        )
    if choice == "none":
        return None
    _require_alone(body)
    if "tools" in (body.chat_template_kwargs or {}):
        raise FieldError(
            "chat_template_kwargs", "chat_template_kwargs holds tools beside tools; leave one out"
        )
    knows_tools, syntax = await _syntax(gateway)
    plain = [tool.model_dump(exclude_unset=True) for tool in body.tools] if knows_tools else None
    is_parallel = body.parallel_tool_calls is not False
    if choice in (None, "auto"):
        if plain is None or syntax is None:
            raise FieldError("tools", _why_not(knows_tools))
        parser = _PARSERS[syntax]
        return ToolPlan(plain, None, lambda: parser(names), is_parallel)
    one = choice.function.name if isinstance(choice, NamedTool) else None
    if one is not None:
        schema = next(_parameters(tool) for tool in body.tools if tool.function.name == one)
        return ToolPlan(plain, _constraint(schema), lambda: NamedCall(one), is_parallel)
    constraint = _constraint(_calls_schema(body.tools, is_parallel))
    return ToolPlan(plain, constraint, lambda: JsonCalls(names), is_parallel)


def with_tools_told(
    messages: tuple[ChatMessage, ...], tools: list[Tool]
) -> tuple[ChatMessage, ...]:
    """The conversation for a template without tools: they stand in its system message."""
    lines = [json.dumps(t.model_dump(exclude_unset=True), ensure_ascii=False) for t in tools]
    told = _SYSTEM + "\n".join(lines)
    if messages[0].role == "system":
        return (ChatMessage("system", f"{messages[0].content}\n\n{told}"), *messages[1:])
    return (ChatMessage("system", told), *messages)


async def with_calls_told(
    messages: tuple[ChatMessage, ...], arguments: Mapping[str, Any] | None, gateway: Gateway
) -> tuple[ChatMessage, ...]:
    """The conversation for a template that leaves earlier calls out: they stand in their turns.

    As JSON, which is how a model writes a call that it must make.
    """
    if not any(_calls_of(m) for m in messages) or await _shows_calls(arguments, gateway):
        return messages
    return tuple(_told(message) if _calls_of(message) else message for message in messages)


def _calls_of(message: ChatMessage) -> list[dict[str, Any]]:
    return (message.extras or {}).get("tool_calls") or []


def _told(message: ChatMessage) -> ChatMessage:
    calls = json.dumps([call["function"] for call in _calls_of(message)], ensure_ascii=False)
    content = f"{message.content}\n{calls}" if message.content else calls
    return ChatMessage(message.role, content, message.extras)


async def _shows_calls(arguments: Mapping[str, Any] | None, gateway: Gateway) -> bool:
    function = {"name": _PROBE, "arguments": {_PROBE: _PROBE}}
    call = {"id": _PROBE_ID, "type": "function", "function": function}
    messages = (ChatMessage("user", "x"), ChatMessage("assistant", "", {"tool_calls": [call]}))
    try:
        text = await gateway.lifecycle.require_loaded().render_chat(messages, arguments)
    except RequestError:
        # The template is particular about calls, so it reads them.
        return True
    return _PROBE in text


async def _syntax(gateway: Gateway) -> tuple[bool, str | None]:
    """Whether the template shows tools, and how the model writes calls down, where known."""
    probe = {"type": "function", "function": {"name": _PROBE, "description": "", "parameters": {}}}
    generator = gateway.lifecycle.require_loaded()
    try:
        text = await generator.render_chat((ChatMessage("user", "x"),), {"tools": [probe]})
    except RequestError:
        # The template fails on tools, or on every conversation, which the request will tell.
        text = ""
    if _PROBE not in text:
        return False, None
    if gateway.tool_parser is not None:
        return True, gateway.tool_parser
    if "<tool_call>" in text:
        return True, "hermes"
    is_llama = "<|python_tag|>" in text or '{"name": function name, "parameters":' in text
    return True, "llama3" if is_llama else None


def _why_not(knows_tools: bool) -> str:
    if knows_tools:
        return (
            "how this model writes tool calls is not known from its chat template; the operator "
            "can set --tool-parser, or set tool_choice to required or to one tool"
        )
    return (
        "the chat template of this model knows no tools, so it cannot choose one by itself; set "
        "tool_choice to required or to one tool, which is enforced, or leave tools out"
    )


def _require_alone(body: ChatBody) -> None:
    formatted = body.response_format is not None and body.response_format.type != "text"
    for name, is_set in (
        ("response_format", formatted),
        ("structured_outputs", bool(body.structured_outputs)),
    ):
        if is_set:
            raise FieldError(name, f"{name} beside tools is not built in; leave one out")


def _parameters(tool: Tool) -> dict[str, Any]:
    """Arguments are an object, whatever the schema leaves out."""
    return {"type": "object", **(tool.function.parameters or {"properties": {}})}


def _calls_schema(tools: list[Tool], is_parallel: bool) -> dict[str, Any]:
    """An array of calls; definitions move to its root under names of their own."""
    definitions: dict[str, Any] = {}
    calls = []
    for number, tool in enumerate(tools):
        schema = _parameters(tool)
        for place in ("$defs", "definitions"):
            for name, value in schema.pop(place, {}).items():
                definitions[f"{place.strip('$')}{number}_{name}"] = _moved(value, number)
        properties = {"name": {"const": tool.function.name}, "arguments": _moved(schema, number)}
        calls.append(
            {
                "type": "object",
                "properties": properties,
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    found: dict[str, Any] = {"type": "array", "items": {"anyOf": calls}, "minItems": 1}
    if not is_parallel:
        found["maxItems"] = 1
    return found | ({"$defs": definitions} if definitions else {})


def _moved(value: Any, number: int) -> Any:
    if isinstance(value, list):
        return [_moved(item, number) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _moved_reference(item, number) if key == "$ref" else _moved(item, number)
        for key, item in value.items()
    }


def _moved_reference(target: Any, number: int) -> Any:
    if not isinstance(target, str):
        return _moved(target, number)
    for place in ("$defs", "definitions"):
        if target.startswith(f"#/{place}/"):
            return f"#/$defs/{place.strip('$')}{number}_{target.removeprefix(f'#/{place}/')}"
    raise FieldError("tools", f"$ref {target[:64]!r} is not built in here, wanted one into $defs")


def _constraint(schema: dict[str, Any]) -> Constraint:
    try:
        return Constraint(json_schema=json.dumps(schema, ensure_ascii=False))
    except RecursionError as error:
        raise FieldError("tools", "the schema of a tool is nested too deeply") from error
