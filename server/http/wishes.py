"""Request bodies -> prompts and sampling parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from omruntime.constraint import Constraint
from omruntime.errors import FieldError
from omruntime.sampling_params import SamplingParams
from server import structured_outputs
from server.http.schema import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    Message,
    ResponseFormat,
    ToolCall,
)
from server.text import ChatMessage

# OpenAI's default for plain completions.
COMPLETION_MAX_TOKENS = 16
# Each prompt of a list is a request of its own, so one body could otherwise fill the queue.
MAX_PROMPTS = 128

# Parts of a message that a template would have to show.
_NOT_BUILT_IN = ("function_call", "audio")
# One spelling for each id: of two, one bias would be lost.
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")
_PLAIN = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "n",
    "ignore_eos",
    "skip_special_tokens",
)
_RENAMED = {"min_tokens": "min_new_tokens", "include_stop_str_in_output": "include_stop"}


def params_of_chat(body: ChatBody) -> SamplingParams:
    """What a chat body asks for; the newer name of the length limit wins.

    Raises:
        RequestError: A value is out of range; the message names it.
    """
    newer = body.max_completion_tokens
    return _params(body, newer if newer is not None else body.max_tokens, _chat_logprobs(body))


def params_of_completion(body: CompletionBody) -> SamplingParams:
    """What a completion body asks for.

    Raises:
        RequestError: A value is out of range; the message names it.
    """
    max_tokens = COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    is_scored = body.echo and body.logprobs is not None
    if is_scored and body.stream and (body.n or 1) > 1:
        raise FieldError(
            "echo", "echo with logprobs and n above 1 is for whole replies; leave stream out"
        )
    return _params(body, max_tokens, body.logprobs, _echoed_logprobs(body, max_tokens))


def _echoed_logprobs(body: CompletionBody, max_tokens: int) -> int | None:
    """Alternatives at each position of the prompt that an echo needs."""
    if not body.echo:
        return None
    # Without tokens to generate, the prompt's pass is all there is, whoever reads what it gives.
    return 0 if body.logprobs is None and max_tokens == 0 else body.logprobs


def prompts_of(body: CompletionBody) -> list[str | tuple[int, ...]]:
    """Each prompt as text or token ids.

    Raises:
        FieldError: None, or too many.
    """
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise FieldError("prompt", "prompt is an empty list, wanted at least one prompt")
    if all(isinstance(item, int) for item in prompt):
        return [tuple(prompt)]  # type: ignore[arg-type]
    if len(prompt) > MAX_PROMPTS:
        raise FieldError(
            "prompt", f"prompt has {len(prompt)} prompts, wanted at most {MAX_PROMPTS}; split it"
        )
    return [p if isinstance(p, str) else tuple(p) for p in prompt]  # type: ignore[arg-type]


def messages_of(messages: Sequence[Message]) -> tuple[ChatMessage, ...]:
    """The conversation, each content as one text.

    Raises:
        FieldError: No messages, one without content, or one with more than text.
    """
    if not messages:
        raise FieldError("messages", "messages is empty, wanted at least one")
    return tuple(_message(number, message) for number, message in enumerate(messages))


def _message(number: int, message: Message) -> ChatMessage:
    where = f"messages[{number}]"
    for name in _NOT_BUILT_IN:
        if (message.model_extra or {}).get(name):
            raise FieldError("messages", f"{where}: {name} is not built in")
    require_role("messages", where, message.role)
    extras = _extras(where, message)
    if message.content is None and not message.tool_calls:
        raise FieldError("messages", f"{where} has no content; set it")
    # OpenAI's newer word, which few templates know.
    role = "system" if message.role == "developer" else message.role
    if message.content is None or isinstance(message.content, str):
        return ChatMessage(role, message.content or "", extras)
    return ChatMessage(role, "".join(_texts(where, message)), extras)


def _extras(where: str, message: Message) -> dict[str, Any] | None:
    """What a template reads of thoughts, of calls and their results; arguments as a mapping."""
    found: dict[str, Any] = {}
    if message.reasoning_content is not None:
        found["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        if message.role != "assistant":
            raise FieldError("messages", f"{where}: tool_calls is for the role assistant")
        found["tool_calls"] = [_call(where, call) for call in message.tool_calls]
    if message.name is not None:
        found["name"] = message.name
    if message.role == "tool" and message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    return found or None


def require_role(param: str, where: str, role: str) -> None:
    """Refuse OpenAI's older role for results; which others there are is the template's to say.

    Raises:
        FieldError: Of the field `param`; the message says where in it.
    """
    if role == "function":
        raise FieldError(param, f"{where}: the role function is not built in; use tool")


def require_arguments(
    param: str, where: str, name: str, arguments: str | dict[str, Any]
) -> dict[str, Any]:
    """The arguments of an earlier call as a mapping.

    Raises:
        FieldError: Of the field `param`: they are no JSON object; the message says where in it.
    """
    try:
        decoded = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise FieldError(param, f"{where}: the arguments of {name[:64]!r} are no JSON object")
    return decoded


def _call(where: str, call: ToolCall) -> dict[str, Any]:
    name = call.function.name
    decoded = require_arguments("messages", where, name, call.function.arguments)
    function = {"name": name, "arguments": decoded}
    plain: dict[str, Any] = {"type": "function", "function": function}
    return plain if call.id is None else {"id": call.id, **plain}


def _texts(where: str, message: Message) -> Iterator[str]:
    assert isinstance(message.content, list)
    for part in message.content:
        if part.type not in ("text", "input_text") or part.text is None:
            raise FieldError(
                "messages", f"{where} has a part of type {part.type[:64]!r}; this model takes text"
            )
        yield part.text


def _chat_logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs is not None:
        raise FieldError("top_logprobs", "top_logprobs is set without logprobs; set logprobs")
    return None


def _params(
    body: GenerationBody,
    max_tokens: int | None,
    logprobs: int | None,
    echoed_logprobs: int | None = None,
) -> SamplingParams:
    prompt_logprobs = body.prompt_logprobs
    if echoed_logprobs is not None:
        prompt_logprobs = max(echoed_logprobs, prompt_logprobs or 0)
    names = {name: name for name in _PLAIN} | _RENAMED
    wishes: dict[str, Any] = {
        ours: value for name, ours in names.items() if (value := getattr(body, name)) is not None
    }
    stop = body.stop or ()
    if body.stop == "":
        raise FieldError("stop", "stop is an empty string, which would end every answer at once")
    return SamplingParams(
        **wishes,
        max_new_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        allowed_token_ids=_allowed(body.allowed_token_ids),
        constraint=_constraint(body),
        logit_bias={_token_id(key): bias for key, bias in (body.logit_bias or {}).items()},
    )


def _constraint(body: GenerationBody) -> Constraint | None:
    structured = structured_outputs.constraint_of(body.structured_outputs or {})
    formatted = _constraint_of_format(body.response_format)
    if structured is not None and formatted is not None:
        raise FieldError(
            "structured_outputs",
            "structured_outputs beside response_format is not built in; leave one out",
        )
    return structured or formatted


def _constraint_of_format(wanted: ResponseFormat | None) -> Constraint | None:
    if wanted is None:
        return None
    if wanted.json_schema is not None and wanted.type != "json_schema":
        raise FieldError(
            "response_format",
            f"response_format has a json_schema beside the type {wanted.type}; set json_schema",
        )
    if wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Constraint(json_object=True)
    if wanted.json_schema is None:
        raise FieldError("response_format", "response_format.json_schema is missing; set it")
    try:
        text = json.dumps(wanted.json_schema.schema_, ensure_ascii=False)
        return Constraint(json_schema=text)
    except RecursionError as error:
        raise FieldError("response_format", "the schema is nested too deeply") from error


def _allowed(token_ids: list[int] | None) -> tuple[int, ...]:
    if token_ids is None:
        return ()
    if not token_ids:
        raise FieldError("allowed_token_ids", "allowed_token_ids is empty, wanted at least one id")
    return tuple(token_ids)


def _token_id(key: str) -> int:
    if not _TOKEN_ID.fullmatch(key):
        raise FieldError("logit_bias", f"logit_bias has the key {key[:64]!r}, wanted a token id")
    return int(key)
