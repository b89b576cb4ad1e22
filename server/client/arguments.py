"""What callers of the Python client hand in, checked: their code may know no types.

Each refusal says what was got, what was wanted and what to do, before anything is sent.
"""

from __future__ import annotations

import operator
import reprlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omruntime.errors import RequestError
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.turn import Scheduling
from server.text import ChatMessage, OutputOptions, TextRequest, chat_message_of

Message = ChatMessage | Mapping[str, str]
"""A turn; a mapping has role and content."""

Prompt = str | Sequence[int] | Sequence[Message]
"""Text, token ids or a conversation."""

Continuations = Sequence[str | Sequence[int]]
"""Texts or token ids."""

# A year. gRPC counts in nanoseconds and takes what lies beyond the year 2262 for passed.
MAX_TIMEOUT_S = 86400 * 365

_WANTED = "wanted text, a list of token ids, or a list of messages with role and content"


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What a call may say beside prompt and sampling parameters.

    Attributes:
        request_id: Default: the client makes one.
        model: Default: the served model.
        cache_salt: Cached prompt beginnings are shared among equal salts only.
        template_arguments: Extra variables for the chat template, of messages alone.
        scheduling: Wishes about the request's turn; its deadline is `timeout_s`.
        output: What the reply holds; not for `score`.
        bypasses_prefix_cache: Compute the prompt anew and remember nothing of it for others.
        timeout_s: Deadline of the whole call in seconds, above 0 and at most a year; None waits
            without end.
    """

    request_id: str | None = None
    model: str | None = None
    cache_salt: str = ""
    template_arguments: Mapping[str, Any] | None = None
    timeout_s: float | None = None
    scheduling: Scheduling = field(default_factory=Scheduling)
    output: OutputOptions = field(default_factory=OutputOptions)
    bypasses_prefix_cache: bool = False

    def __post_init__(self) -> None:
        """Check the deadline; the rest is checked as it is written down.

        Raises:
            RequestError: It is no number of seconds.
        """
        given = self.timeout_s
        if given is None:
            return
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if not is_number or not 0 < given <= MAX_TIMEOUT_S:  # NaN is neither
            raise RequestError(
                f"timeout_s is {given!r}, wanted seconds above 0 and at most {MAX_TIMEOUT_S}, or "
                f"None to wait without end"
            )


def text_request(prompt: Prompt, params: SamplingParams, options: CallOptions) -> TextRequest:
    """A request in the domain's words.

    Raises:
        RequestError: An argument is of another type.
    """
    if not isinstance(params, SamplingParams):
        raise RequestError(
            f"params is {_shown(params)}, wanted SamplingParams"
            + ("; hand it in as options=" if isinstance(params, CallOptions) else "")
        )
    if not isinstance(options, CallOptions):
        raise RequestError(
            f"options is {_shown(options)}, wanted CallOptions"
            + ("; hand it in as params=" if isinstance(options, SamplingParams) else "")
        )
    text, token_ids, messages = _kind_of(prompt)
    if options.template_arguments is not None and messages is None:
        raise RequestError("template_arguments is for the chat template; send messages with it")
    return TextRequest(
        request_id=options.request_id if options.request_id is not None else uuid.uuid4().hex,
        params=params,
        text=text,
        token_ids=token_ids,
        messages=messages,
        template_arguments=options.template_arguments,
        cache_salt=options.cache_salt,
    )


_Kinds = tuple[str | None, tuple[int, ...] | None, tuple[ChatMessage, ...] | None]


def _kind_of(prompt: Prompt) -> _Kinds:
    """Text, token ids and messages, of which one is given."""
    if isinstance(prompt, str):
        return prompt, None, None
    if isinstance(prompt, ChatMessage | Mapping):
        raise RequestError(f"the prompt is one message, {_WANTED}: put it into a list")
    if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Iterable):
        raise RequestError(f"the prompt is {_shown(prompt)}, {_WANTED}")
    items: list[object] = list(prompt)
    if items and all(isinstance(item, str) for item in items):
        raise RequestError(f"the prompt is a list of texts, {_WANTED}: send a request for each")
    if any(isinstance(item, ChatMessage | Mapping) for item in items):
        if all(isinstance(item, ChatMessage | Mapping) for item in items):
            return None, None, tuple(chat_message_of(item) for item in items)
        raise RequestError(f"the prompt mixes types ({_types_of(items)}), {_WANTED}")
    return None, tuple(_token_id(item, items) for item in items), None


def _token_id(item: Any, items: Iterable[object]) -> int:
    """An int, or what other libraries have for one."""
    try:
        if not isinstance(item, bool):
            return operator.index(item)
    except TypeError:
        pass
    raise RequestError(f"the prompt is a list of {_types_of(items)}, {_WANTED}")


def _types_of(items: Iterable[object]) -> str:
    return " and ".join(dict.fromkeys(type(item).__name__ for item in items))


def _shown(value: object) -> str:
    return f"{reprlib.repr(value)} ({type(value).__name__})"
