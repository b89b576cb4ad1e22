"""RequestTally: what is known of a request when it is over, whichever way it ended."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from omruntime.sequence import FinishReason
from server.text import TextDelta


@dataclass(frozen=True, slots=True)
class Arrival:
    """New tokens of one answer reached its reader.

    Attributes:
        is_first: Whether they are its first.
        seconds: Since the request came, or since the answer's tokens before.
    """

    is_first: bool
    seconds: float


@dataclass(slots=True)
class RequestTally:
    """Counts over the deltas that a reader took; begins when the request comes.

    Attributes:
        num_answers: How many answers were asked for.
        began_at: Seconds of `time.monotonic`.
        ends: The terminal delta of each answer that has ended, by index.
        num_prompt_tokens: 0 until the first delta.
    """

    num_answers: int
    ends: dict[int, TextDelta] = field(default_factory=dict)
    num_prompt_tokens: int = 0
    began_at: float = field(default_factory=time.monotonic)
    _taken_at: dict[int, float] = field(default_factory=dict)
    _num_taken: dict[int, int] = field(default_factory=dict)

    def count(self, delta: TextDelta) -> Arrival | None:
        """Take over one delta; says how long its tokens took, when it has any."""
        self.num_prompt_tokens = max(self.num_prompt_tokens, delta.num_prompt_tokens)
        self._num_taken[delta.index] = self._num_taken.get(delta.index, 0) + len(delta.token_ids)
        if delta.finish_reason is not None:
            self.ends[delta.index] = delta
        return self._arrival(delta.index) if delta.token_ids else None

    def _arrival(self, index: int) -> Arrival:
        now = time.monotonic()
        is_first = index not in self._taken_at
        seconds = now - self._taken_at.get(index, self.began_at)
        self._taken_at[index] = now
        return Arrival(is_first, seconds)

    @property
    def is_complete(self) -> bool:
        """Whether every answer has ended."""
        return len(self.ends) == self.num_answers

    @property
    def reasons(self) -> list[FinishReason]:
        """Why each answer ended, by index; those whose reader left count as aborted."""
        ends = [self.ends.get(index) for index in range(self.num_answers)]
        return [(end and end.finish_reason) or FinishReason.ABORT for end in ends]

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens; of an answer whose reader left, those that were taken."""
        return sum(self._num_output_tokens(index) for index in range(self.num_answers))

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens from the prefix cache, as far as an answer has ended."""
        usages = [end.usage for end in self.ends.values() if end.usage is not None]
        return max((usage.num_cached_tokens for usage in usages), default=0)

    def _num_output_tokens(self, index: int) -> int:
        end = self.ends.get(index)
        if end is None or end.usage is None:
            return self._num_taken.get(index, 0)
        return end.usage.num_output_tokens
