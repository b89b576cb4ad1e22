"""Scoring: how likely continuations of a prompt are, each by a request that generates nothing.

Owns where a prompt ends and its continuation begins, and the sums. Logprobs are the engine's.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from omruntime.errors import (
    RequestError,
    ShuttingDownError,
)
from omruntime.sampling_params import MAX_LOGPROBS, SamplingParams
from omruntime.sequence import FinishReason
from server.all_or_error import all_or_error
from server.answers import join_deltas
from server.cut_off import cut_off
from server.logs import request_id_var
from server.seams import TextGeneratorLike
from server.text import ContinuationScore, OutputOptions, TextDelta, TextRequest

# Each continuation is a request of its own, so one call could otherwise fill the queue.
MAX_CONTINUATIONS = 128
# Characters to tokenise, the prompt's counted for each continuation: some seconds of a thread.
# Token ids have no such bound.
MAX_SCORE_CHARS = 1 << 22

Continuation = str | tuple[int, ...]
"""Text, or token ids."""

Stream = Callable[[TextRequest], AsyncGenerator[TextDelta, None]]
"""The deltas of a request, such as `TextGenerator.stream`."""


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Continuations of one prompt.

    Attributes:
        prompt: The prompt and all that is said of the request; the parts' ids are its id with
            /0, /1, ... behind it. Its params and output options have no effect.
        continuations: Each scored by itself; 1 to 128.
        top_logprobs: List the best so many tokens at each position, 0 to 20.
    """

    prompt: TextRequest
    continuations: tuple[Continuation, ...]
    top_logprobs: int = 0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            RequestError: One is out of range.
        """
        if not 0 <= self.top_logprobs <= MAX_LOGPROBS:
            raise RequestError(f"top_logprobs is {self.top_logprobs}, wanted 0 to {MAX_LOGPROBS}")
        if not 1 <= len(self.continuations) <= MAX_CONTINUATIONS:
            raise RequestError(
                f"got {len(self.continuations)} continuations, wanted 1 to {MAX_CONTINUATIONS}"
            )


async def score(
    generator: TextGeneratorLike, stream: Stream, request: ScoreRequest
) -> tuple[ContinuationScore, ...]:
    """Score all continuations, at once; the first failure ends the others.

    Args:
        stream: Runs the parts.

    Returns:
        In the order of the continuations.

    Raises:
        RequestError: Prompt or a continuation gives no token, or they are too long.
        OmError: As `TextGenerator.stream`; and when a part did not come to its end.
    """
    parts = await _parts(generator, request)
    return tuple(await all_or_error(_score_part(stream, part) for part in parts))


async def _score_part(stream: Stream, part: TextRequest) -> ContinuationScore:
    request_id_var.set(part.request_id)
    async with aclosing(stream(part)) as deltas:
        (answer,) = join_deltas([delta async for delta in deltas])
    _require_end(part.request_id, answer)
    tokens = answer.prompt_logprobs
    assert answer.usage is not None, f"{part.request_id} has ended without usage"
    return ContinuationScore(
        logprob=math.fsum(token.logprob for token in tokens if token.logprob is not None),
        is_greedy=all(token.rank == 1 for token in tokens),
        tokens=tokens,
        usage=answer.usage,
    )


def _require_end(request_id: str, answer: TextDelta) -> None:
    """Check that a part was scored to its end."""
    if failure := cut_off(answer):
        raise failure
    if answer.finish_reason is FinishReason.ABORT:
        raise ShuttingDownError(f"{request_id} was aborted; send the request again")


async def _parts(generator: TextGeneratorLike, request: ScoreRequest) -> list[TextRequest]:
    """A request for each continuation."""
    params = SamplingParams(max_new_tokens=0, temperature=0.0, prompt_logprobs=request.top_logprobs)
    common = replace(
        request.prompt,
        params=params,
        text=None,
        messages=None,
        template_arguments=None,
        output=OutputOptions(omit_text=True),
    )
    parts = []
    for number, (token_ids, first) in enumerate(await _split(generator, request)):
        if first == 0:
            raise RequestError(
                f"the prompt gives no token of its own, wanted at least one for continuation "
                f"{number} to follow, such as the model's begin token"
            )
        if first >= len(token_ids):
            raise RequestError(f"continuation {number} gives no token, wanted at least one")
        request_id = f"{request.prompt.request_id}/{number}"
        parts.append(replace(common, request_id=request_id, token_ids=token_ids, score_from=first))
    return parts


async def _split(
    generator: TextGeneratorLike, request: ScoreRequest
) -> list[tuple[tuple[int, ...], int]]:
    """For each continuation the tokens of prompt and continuation, and where the latter begin."""
    prompt = request.prompt
    # A template writes its own special tokens.
    adds_special = prompt.messages is None
    text = prompt.text
    if prompt.messages is not None:
        text = await generator.render_chat(prompt.messages, prompt.template_arguments)
    _require_chars(text or "", request.continuations)
    context = prompt.token_ids
    if context is None:
        assert text is not None, "the front end checks that there is a prompt"
        context = await generator.tokenize(text, adds_special)
    found = []
    for continuation in request.continuations:
        if not isinstance(continuation, str):
            found.append(((*context, *continuation), len(context)))
        elif text is None:
            token_ids = await generator.tokenize(continuation, False)
            found.append(((*context, *token_ids), len(context)))
        else:
            # Together, as a document would be: the border may fall inside of a token.
            token_ids = await generator.tokenize(text + continuation, adds_special)
            found.append((token_ids, _num_equal(context, token_ids)))
    return found


def _require_chars(text: str, continuations: tuple[Continuation, ...]) -> None:
    num_chars = sum(len(text) + len(c) for c in continuations if isinstance(c, str))
    if num_chars > MAX_SCORE_CHARS:
        raise RequestError(
            f"prompt and continuations have {num_chars} characters, the prompt's counted for each "
            f"continuation, wanted at most {MAX_SCORE_CHARS}; send token ids, or fewer at once"
        )


def _num_equal(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens two texts have in common at their beginnings."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))
