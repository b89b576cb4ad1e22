"""RequestTally: what is known of a request when it is over, whichever way it ended."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from omruntime.sequence import FinishReason
from server.text import TextDelta


@dataclass(slots=True)
class RequestTally:
    """Counts over the deltas that a reader took.

    Attributes:
        num_answers: How many answers were asked for.
        ends: The terminal delta of each answer that has ended, by index.
        num_prompt_tokens: 0 until the first delta.
        gaps_s: Seconds between two deltas of one answer with tokens, as the reader saw them.
    """

    num_answers: int
    ends: dict[int, TextDelta] = field(default_factory=dict)
    num_prompt_tokens: int = 0
    gaps_s: list[float] = field(default_factory=list)
    _taken_at: dict[int, float] = field(default_factory=dict)
    _num_taken: dict[int, int] = field(default_factory=dict)

    def count(self, delta: TextDelta) -> None:
        """Take over one delta."""
        self.num_prompt_tokens = max(self.num_prompt_tokens, delta.num_prompt_tokens)
        self._num_taken[delta.index] = self._num_taken.get(delta.index, 0) + len(delta.token_ids)
        if delta.token_ids:
            self._count_gap(delta.index)
        if delta.finish_reason is not None:
            self.ends[delta.index] = delta

    def _count_gap(self, index: int) -> None:
        now = time.monotonic()
        if index in self._taken_at:
            self.gaps_s.append(now - self._taken_at[index])
        self._taken_at[index] = now

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
