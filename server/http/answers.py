"""Deltas -> OpenAI's choices, whole or in chunks: the parts that both routes share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from omruntime.errors import DeviceError, OmError, ShuttingDownError
from omruntime.sequence import FinishReason
from omruntime.step import TokenLogprobs
from server.text import TextDelta, Usage

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
    if delta.finish_reason is FinishReason.ERROR:
        return DeviceError(f"answer {delta.index} failed: {delta.error}")
    return ShuttingDownError(
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


async def completion_logprobs(
    delta: TextDelta, first_offset: int, text_of: TokenText
) -> dict[str, object] | None:
    """The logprobs of a completion choice; None when none were asked for.

    Args:
        first_offset: Characters of the choice's text before these tokens.
    """
    if not delta.logprobs:
        return None
    texts = [await text_of(token_id) for token_id in delta.token_ids]
    offsets, end = [], first_offset
    for text in texts:
        offsets.append(end)
        end += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [entry.logprob for entry in delta.logprobs],
        "top_logprobs": [await _top(entry, text_of) for entry in delta.logprobs],
        "text_offset": offsets,
    }


async def _top(entry: TokenLogprobs, text_of: TokenText) -> dict[str, float]:
    """By text; of tokens with the same one, as parts of a character have, the best keeps it."""
    found: dict[str, float] = {}
    for token_id, logprob in entry.top:
        text = await text_of(token_id)
        found[f"token_id:{token_id}" if text in found else text] = logprob
    return found


def _entry(text: str, logprob: float) -> dict[str, object]:
    """`bytes` is null where the token is no whole text, so that its bytes are not known here."""
    known = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": known}
