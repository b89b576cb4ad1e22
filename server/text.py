"""The text layer's vocabulary: what a front end asks of `TextGenerator` and what it gets.

Every front end (gRPC, HTTP, in-process) speaks these types and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omruntime.outputs import RequestTimings
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from omruntime.step import TokenLogprobs


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One request; exactly one of `text`, `token_ids` and `messages` is given.

    Attributes:
        request_id: Chosen by the front end; unique among live requests.
        template_arguments: Extra variables for the chat template, such as enable_thinking.
    """

    request_id: str
    params: SamplingParams
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[ChatMessage, ...] | None = None
    template_arguments: Mapping[str, Any] | None = None
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one finished answer; the end token counts as generated."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int


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
