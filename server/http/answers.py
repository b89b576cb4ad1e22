"""Deltas -> OpenAI's choices, whole or in chunks: the parts that both routes share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from omruntime.errors import OmError, ShuttingDownError
from omruntime.sequence import FinishReason
from server.cut_off import cut_off
from server.text import PromptToken, TextDelta, Usage

Top = tuple[tuple[int, float], ...]
"""(token id, logprob), best first."""

TokenText = Callable[[int], Awaitable[str]]
"""The text of one token by itself."""

_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


def finish_reason_of(delta: TextDelta) -> str | None:
    """OpenAI's word for why an answer ended; None while it goes on.

    Raises:
        OmError: It did not end by itself, for which OpenAI has no word.
    """
    if delta.finish_reason is None:
        return None
    if delta.finish_reason not in _REASONS:
        raise failure_of(delta)
    return _REASONS[delta.finish_reason]


def failure_of(delta: TextDelta) -> OmError:
    """The error of an answer that was cut off."""
    return cut_off(delta) or ShuttingDownError(
        f"answer {delta.index} was aborted by the server; send the request again"
    )


def usage_of(usages: Iterable[Usage], num_prompts: int = 1) -> dict[str, object]:
    """Token counts over all answers; the prompt of several answers counts once.

    Args:
        usages: Of each answer, those of one prompt after each other.
        num_prompts: How many prompts they belong to, each with equally many answers.
    """
    found = list(usages)
    firsts = found[:: max(1, len(found) // num_prompts)]
    num_prompt_tokens = sum(usage.num_prompt_tokens for usage in firsts)
    num_output_tokens = sum(usage.num_output_tokens for usage in found)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": num_prompt_tokens + num_output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": sum(usage.num_cached_tokens for usage in firsts)
        },
    }


async def chat_logprobs(delta: TextDelta, text_of: TokenText) -> dict[str, object] | None:
    """The logprobs of a chat choice; None when none were asked for."""
    if not delta.logprobs:
        return None
    entries = []
    for token_id, entry in zip(delta.token_ids, delta.logprobs, strict=True):
        top = [_entry(await text_of(i), logprob) for i, logprob in entry.top]
        entries.append(_entry(await text_of(token_id), entry.logprob) | {"top_logprobs": top})
    return {"content": entries}


class CompletionLogprobs:
    """The logprobs of one completion choice, whole or piece by piece; tokens are put in in turn."""

    def __init__(self, text_of: TokenText) -> None:
        self._text_of = text_of
        self._tokens: list[str] = []
        self._logprobs: list[float | None] = []
        self._top: list[dict[str, float] | None] = []
        self._offsets: list[int] = []

    async def put_prompt(self, tokens: Iterable[PromptToken], k: int, offset: int) -> int:
        """Add tokens of the echoed prompt, with the best k each.

        Args:
            offset: Characters of the choice's text before them.

        Returns:
            The same behind them.
        """
        for token in tokens:
            top = None if token.logprob is None else token.top[:k]
            offset = await self._put(token.token_id, token.logprob, top, offset)
        return offset

    async def put_answer(self, delta: TextDelta, offset: int) -> None:
        """Add the answer's tokens, which stand behind `offset` characters."""
        for token_id, entry in zip(delta.token_ids, delta.logprobs, strict=False):
            offset = await self._put(token_id, entry.logprob, entry.top, offset)

    def body(self) -> dict[str, object] | None:
        """OpenAI's object; None when nothing was put in."""
        if not self._tokens:
            return None
        return {
            "tokens": self._tokens,
            "token_logprobs": self._logprobs,
            "top_logprobs": self._top,
            "text_offset": self._offsets,
        }

    async def _put(self, token_id: int, logprob: float | None, top: Top | None, offset: int) -> int:
        text = await self._text_of(token_id)
        self._tokens.append(text)
        self._logprobs.append(logprob)
        self._top.append(None if top is None else await _by_text(top, self._text_of))
        self._offsets.append(offset)
        return offset + len(text)


async def prompt_logprobs_of(
    tokens: Iterable[PromptToken], k: int, text_of: TokenText
) -> list[dict[str, object] | None]:
    """A prompt's logprobs as vLLM's clients read them: by token id, its own token among the best k.

    The first token has none.
    """
    found: list[dict[str, object] | None] = []
    for token in tokens:
        if token.logprob is None:
            found.append(None)
            continue
        ranked = [(token.token_id, token.logprob, token.rank)]
        ranked += [(i, logprob, rank) for rank, (i, logprob) in enumerate(token.top[:k], start=1)]
        entries: dict[str, object] = {}
        for i, logprob, rank in ranked:
            if str(i) not in entries:
                text = await text_of(i)
                entries[str(i)] = {"logprob": logprob, "rank": rank, "decoded_token": text}
        found.append(entries)
    return found


async def _by_text(top: Top, text_of: TokenText) -> dict[str, float]:
    """Of tokens with the same text, as parts of a character have, the best keeps it."""
    found: dict[str, float] = {}
    for token_id, logprob in top:
        text = await text_of(token_id)
        found[f"token_id:{token_id}" if text in found else text] = logprob
    return found


def _entry(text: str, logprob: float) -> dict[str, object]:
    """`bytes` is null where the token is no whole text, so that its bytes are not known here."""
    known = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": known}
