"""PromptPart: what an answer says of its own prompt, its text and its logprobs.

Owns the way from the engine's scores to the reader's entries. The answer itself is
`answer_text.py`'s.
"""

from __future__ import annotations

from dataclasses import replace

from omruntime.outputs import TokenDelta
from server.text import PromptToken, TextDelta


class PromptPart:
    """Puts the prompt's part into the text deltas of one answer."""

    def __init__(
        self, token_ids: tuple[int, ...], is_scored: bool, score_from: int, echoed: str
    ) -> None:
        """Begin with nothing told.

        Args:
            is_scored: Whether the engine was asked for logprobs of the prompt.
            score_from: Tokens before this position are left out.
            echoed: Text to stand before the answer's.
        """
        self._token_ids = token_ids
        self._is_scored = is_scored
        self._next = score_from
        self._echoed = echoed

    def put_into(self, text_delta: TextDelta, delta: TokenDelta) -> TextDelta:
        """The text delta of a token delta, with what that says of the prompt."""
        if not self._is_scored and not self._echoed:
            return text_delta
        entries: list[PromptToken] = []
        if self._is_scored and self._next == 0:
            # Nothing stands before the first token, so the engine has no word of it.
            entries.append(PromptToken(self._token_ids[0]))
            self._next = 1
        for score in delta.prompt_logprobs:
            logprobs = score.logprobs
            token_id = self._token_ids[self._next]
            entries.append(PromptToken(token_id, logprobs.logprob, score.rank, logprobs.top))
            self._next += 1
        echoed, self._echoed = self._echoed, ""
        return replace(text_delta, text=echoed + text_delta.text, prompt_logprobs=tuple(entries))
