"""What was seen of each request: times in seconds from the start of the run."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from itertools import pairwise


class Outcome(enum.Enum):
    """How a request ended."""

    OK = "ok"
    REJECTED = "rejected"
    """Refused for its queue being full or a limit reached: RESOURCE_EXHAUSTED, or HTTP 429."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """As the server counted; None where it does not say."""

    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    num_cached_tokens: int | None = None


@dataclass(slots=True)
class Record:
    """One request.

    Attributes:
        due_s: Its scheduled arrival, the end of the answer before it plus the time to think, or
            in a closed loop when its place became free. All latencies count from here.
        ready_s: When it was due and had a place under --max-concurrency.
        sent_s: When it was handed to the connection.
        events: When events with tokens came, and how many tokens each had.
        num_asked_tokens: Most tokens that the answer could have.
        error: Why, unless OK; begins with a code and a colon.
    """

    conversation: int
    turn: int
    due_s: float
    num_asked_tokens: int
    ready_s: float = 0.0
    sent_s: float = 0.0
    end_s: float = 0.0
    events: list[tuple[float, int]] = field(default_factory=list)
    counts: TokenCounts = TokenCounts()
    outcome: Outcome = Outcome.FAILED
    finish_reason: str = ""
    error: str = ""

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer: the server's count, or else those that were seen."""
        seen = sum(count for _, count in self.events)
        counted = self.counts.num_output_tokens
        return seen if counted is None else counted

    @property
    def ttft_s(self) -> float | None:
        """See `metrics.DEFINITIONS`, as for the others; None when there was no token."""
        return self.events[0][0] - self.due_s if self.events else None

    @property
    def tpot_s(self) -> float | None:
        """None for fewer than two tokens, or when all came in one event."""
        if len(self.events) < 2 or self.num_tokens < 2:
            return None
        return (self.events[-1][0] - self.events[0][0]) / (self.num_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """From one event with tokens to the next."""
        return [after - before for (before, _), (after, _) in pairwise(self.events)]

    @property
    def e2el_s(self) -> float:
        """To the end of the answer."""
        return self.end_s - self.due_s

    @property
    def late_s(self) -> float:
        """How much later it was sent than it could have been: the client's own doing."""
        return self.sent_s - self.ready_s
