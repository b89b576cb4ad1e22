"""The body of POST /v1/responses, and the chat body that asks for the same.

The text subset: what the server would have to keep between requests, and tools that it would have
to run itself, are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)

from omruntime.errors import FieldError
from server.http.schema import (
    HARMLESS,
    INSTEAD,
    MAX_TURNS,
    NOT_BUILT_IN,
    CalledFunction,
    ChatBody,
    FastList,
    Function,
    Message,
    NamedSchema,
    NamedTool,
    ResponseFormat,
    ShortList,
    TextPart,
    Tool,
    ToolCall,
    ToolName,
    log_once,
    way_without,
)
from server.http.wishes import require_arguments, require_role

# Values that ask for nothing special; what chat completions refuse is refused here as well.
_NOT_BUILT_IN: dict[str, tuple[Any, ...]] = {
    **NOT_BUILT_IN,
    "background": (None, False),
    "conversation": (None,),
    "include": (None, []),
    "max_tool_calls": (None,),
    "previous_response_id": (None,),
    "prompt": (None,),
    "reasoning": (None, {}, {"effort": None, "summary": None}),
    "top_logprobs": (None, 0),
    "truncation": (None, "disabled"),
}
_INSTEAD = {
    **INSTEAD,
    "guided_json": "text.format",
    "json_schema": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "structured_outputs": "text.format",
}
_TEXT_PARTS = ("input_text", "output_text", "text")


class InputItem(BaseModel):
    """A message, an earlier call, its result, or an earlier thought."""

    model_config = ConfigDict(extra="allow")
    type: StrictStr = "message"
    role: StrictStr | None = None
    content: StrictStr | ShortList[TextPart] | None = None
    call_id: StrictStr | None = None
    name: StrictStr | None = None
    arguments: StrictStr | None = None
    output: StrictStr | ShortList[TextPart] | None = None


class TextFormat(BaseModel):
    """What the answer's text may be."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: StrictStr | None = None
    description: StrictStr | None = None
    schema_: dict[str, Any] | StrictBool | None = Field(default=None, alias="schema")
    strict: StrictBool | None = None


class TextOptions(BaseModel):
    """How the answer's text is written."""

    model_config = ConfigDict(extra="forbid")
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponseTool(BaseModel):
    """A tool; those of other types than function are refused by name."""

    model_config = ConfigDict(extra="allow")
    type: StrictStr
    name: StrictStr | None = None
    description: StrictStr | None = None
    parameters: dict[str, Any] | None = None
    strict: StrictBool | None = None


class ResponseToolName(BaseModel):
    """`tool_choice` of one tool."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["function"]
    name: StrictStr


class ResponsesBody(BaseModel):
    """POST /v1/responses."""

    model_config = ConfigDict(extra="allow")

    model: StrictStr | None = Field(
        default=None, description="The served name; left out: that one."
    )
    input: StrictStr | ShortList[InputItem]
    instructions: StrictStr | None = None
    max_output_tokens: StrictInt | None = None
    temperature: StrictFloat | None = None
    top_p: StrictFloat | None = None
    text: TextOptions | None = None
    tools: FastList[ResponseTool] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | ResponseToolName | None = None
    parallel_tool_calls: StrictBool | None = None
    stream: StrictBool | None = None
    metadata: dict[str, StrictStr] | None = None
    user: StrictStr | None = None
    # Beyond OpenAI's, as in chat completions.
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: StrictStr | None = None


def chat_body_of(body: ResponsesBody) -> ChatBody:
    """The chat body that asks for the same.

    Raises:
        FieldError: Something is not built in; the message names it.
    """
    for name, value in (body.model_extra or {}).items():
        if name in _NOT_BUILT_IN:
            is_harmless = value in _NOT_BUILT_IN[name]
        else:
            is_harmless = name not in ChatBody.model_fields
        if not is_harmless:
            raise FieldError(name, f"{name} is not built in here; {way_without(name, _INSTEAD)}")
        if name not in HARMLESS and name not in _NOT_BUILT_IN:
            log_once(name)
    messages = list(_messages(body))
    if len(messages) > MAX_TURNS:
        raise FieldError(
            "input",
            f"input and instructions are {len(messages)} turns, wanted at most {MAX_TURNS}",
        )
    return ChatBody(
        model=body.model,
        messages=messages,
        max_completion_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        response_format=_format(body.text),
        tools=[_tool(number, tool) for number, tool in enumerate(body.tools or [])],
        tool_choice=_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        chat_template_kwargs=body.chat_template_kwargs,
        cache_salt=body.cache_salt,
    )


def _messages(body: ResponsesBody) -> Iterator[Message]:
    """Turns in order; a thought, a text and calls that follow each other are one turn."""
    if body.instructions is not None:
        yield Message(role="system", content=body.instructions)
    if isinstance(body.input, str):
        yield Message(role="user", content=body.input)
        return
    turn: Message | None = None
    for number, item in enumerate(body.input):
        where = f"input[{number}]"
        if item.type in ("reasoning", "function_call") or item.role == "assistant":
            turn = _continued(where, turn, item)
            continue
        if turn is not None:
            yield turn
            turn = None
        yield _other(where, item)
    if turn is not None:
        yield turn


def _continued(where: str, turn: Message | None, item: InputItem) -> Message:
    """The assistant's turn with one more item."""
    if turn is None:
        turn = Message(role="assistant", content="")
    if item.type == "reasoning":
        if (item.model_extra or {}).get("encrypted_content"):
            raise FieldError("input", f"{where}: encrypted_content is not built in; leave it out")
        return turn.model_copy(update={"reasoning_content": _text(where, item.content or [])})
    if item.type == "function_call":
        if item.name is None or item.call_id is None:
            raise FieldError("input", f"{where} has no name or no call_id; set both")
        arguments = require_arguments("input", where, item.name, item.arguments or "")
        function = CalledFunction(name=item.name, arguments=arguments)
        calls = [*(turn.tool_calls or []), ToolCall(id=item.call_id, function=function)]
        return turn.model_copy(update={"tool_calls": calls})
    _require_message(where, item)
    text = _text(where, item.content)
    return turn.model_copy(update={"content": f"{turn.content or ''}{text}"})


def _other(where: str, item: InputItem) -> Message:
    if item.type == "function_call_output":
        if item.call_id is None:
            raise FieldError("input", f"{where} has no call_id; set it")
        return Message(role="tool", tool_call_id=item.call_id, content=_text(where, item.output))
    _require_message(where, item)
    if item.role is None:
        raise FieldError("input", f"{where} has no role; set it")
    require_role("input", where, item.role)
    return Message(role=item.role, content=_text(where, item.content))


def _require_message(where: str, item: InputItem) -> None:
    if item.type != "message":
        raise FieldError("input", f"{where}: the type {item.type[:64]!r} is not built in")


def _text(where: str, content: str | list[TextPart] | None) -> str:
    if content is None:
        raise FieldError("input", f"{where} has no content; set it")
    if isinstance(content, str):
        return content
    for part in content:
        if part.type not in (*_TEXT_PARTS, "reasoning_text") or part.text is None:
            raise FieldError(
                "input", f"{where} has a part of type {part.type[:64]!r}; this model takes text"
            )
    return "".join(part.text or "" for part in content)


def _format(options: TextOptions | None) -> ResponseFormat | None:
    wanted = None if options is None else options.format
    if wanted is not None and wanted.schema_ is not None and wanted.type != "json_schema":
        raise FieldError(
            "text", f"text.format has a schema beside the type {wanted.type}; set json_schema"
        )
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return ResponseFormat(type="json_object")
    if wanted.name is None or wanted.schema_ is None:
        raise FieldError("text", "text.format has no name or no schema; set both")
    return ResponseFormat(
        type="json_schema", json_schema=NamedSchema(name=wanted.name, schema=wanted.schema_)
    )


def _tool(number: int, tool: ResponseTool) -> Tool:
    if tool.type != "function":
        raise FieldError("tools", f"tools[{number}] of type {tool.type[:64]!r} is not built in")
    given = tool.model_dump(exclude_unset=True, include={"name", "description", "parameters"})
    try:
        return Tool(type="function", function=Function(**given))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(["tools", str(number), *map(str, first["loc"])])
        raise FieldError("tools", f"{place}: {first['msg']}") from error


def _choice(
    choice: Literal["none", "auto", "required"] | ResponseToolName | None,
) -> Literal["none", "auto", "required"] | NamedTool | None:
    if isinstance(choice, ResponseToolName):
        return NamedTool(type="function", function=ToolName(name=choice.name))
    return choice
