"""The text layer's vocabulary: what a front end asks of `TextGenerator` and what it gets.

Every front end (gRPC, HTTP, in-process) speaks these types and nothing else.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from omruntime.errors import RequestError
from omruntime.outputs import RequestTimings
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.turn import Scheduling
from omruntime.sequence import FinishReason
from omruntime.step import TokenLogprobs


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation.

    Attributes:
        extras: What else the template reads of it: tool_calls, tool_call_id, name.
    """

    role: str
    content: str
    extras: Mapping[str, Any] | None = None


def chat_message_of(item: object) -> ChatMessage:
    """A turn, given as one or as a mapping of role and content.

    Raises:
        RequestError: It is something else.
    """
    if isinstance(item, ChatMessage):
        return item
    if not isinstance(item, Mapping):
        raise RequestError(
            f"got the message {reprlib.repr(item)}, wanted a mapping with role and content"
        )
    role, content = item.get("role"), item.get("content")
    if isinstance(role, str) and isinstance(content, str) and len(item) == 2:
        return ChatMessage(role, content)
    raise RequestError(
        f"got the message {reprlib.repr(dict(item))}, wanted role and content as text and nothing "
        f"else"
    )


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What a reply holds.

    Attributes:
        echo: The prompt's text stands before each answer's.
        final_only: A stream gives each answer when it is finished. The front end's business.
        omit_text: Texts stay empty, and nothing is decoded; not beside echo and stop strings.
        omit_token_ids: Token ids are not sent. The front end's business.
    """

    echo: bool = False
    final_only: bool = False
    omit_text: bool = False
    omit_token_ids: bool = False


class TextWatch(Protocol):
    """Reads one answer as it grows, and says when it is complete."""

    def push(self, text: str) -> bool:
        """Whether the answer is complete with this next text."""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One request; exactly one of `text`, `token_ids` and `messages` is given.

    Attributes:
        request_id: Chosen by the front end; unique among the live requests of one owner.
        owner: The tenant that the caller's API key proves; empty when no keys are asked for.
        template_arguments: Extra variables for the chat template, such as enable_thinking.
        score_from: Of the prompt's logprobs, those of tokens before this position are left out;
            0 leaves none out.
        new_watch: Makes the watch of each answer, which may end it as a stop string does, behind
            the token that completed it; not beside `omit_text`.
    """

    request_id: str
    params: SamplingParams
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[ChatMessage, ...] | None = None
    template_arguments: Mapping[str, Any] | None = None
    cache_salt: str = ""
    scheduling: Scheduling = field(default_factory=Scheduling)
    output: OutputOptions = field(default_factory=OutputOptions)
    bypasses_prefix_cache: bool = False
    score_from: int = 0
    new_watch: Callable[[], TextWatch] | None = None
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one finished answer; the end token counts as generated."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class PromptToken:
    """How likely one token of the prompt was, given those before it.

    Attributes:
        logprob, rank: None for the first token of a prompt; rank 1 is the likeliest.
        top: (token id, logprob) of the best k at its position, best first.
    """

    token_id: int
    logprob: float | None = None
    rank: int | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of one answer.

    Joined over the stream, `text` is the whole answer and `token_ids` all its tokens. Text
    that a stop string may still swallow, or that ends inside a character, is held back, so a
    delta can have tokens and no text.

    Attributes:
        index: Which of the `n` answers.
        logprobs: One for each token when asked for.
        finish_reason: On the last delta of this index, with `usage` and `timings`.
        matched_stop: The stop string or stop token id that ended the answer, if one did.
        error: Why, when `finish_reason` is ERROR.
        is_refusal: Whether the error lies in the request's own parameters.
        prompt_logprobs: Of the prompt's next tokens when asked for, before the first token of the
            answer; of several answers with index 0 alone.
        num_prompt_tokens: Of the request, on every delta, so that a reader that leaves early
            knows it; client code finds it in `usage`.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    matched_stop: str | int | None = None
    error: str = ""
    usage: Usage | None = None
    timings: RequestTimings | None = None
    num_prompt_tokens: int = 0
    prompt_logprobs: tuple[PromptToken, ...] = ()
    is_refusal: bool = False


@dataclass(frozen=True, slots=True)
class ContinuationScore:
    """How likely a continuation of a prompt is.

    Attributes:
        logprob: Of all its tokens: the sum of theirs.
        is_greedy: Whether each is the likeliest at its position.
        usage: Prompt and continuation count as the prompt.
    """

    logprob: float
    is_greedy: bool
    tokens: tuple[PromptToken, ...]
    usage: Usage
