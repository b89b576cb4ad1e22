"""Target: what a load generator needs of a server, whatever it speaks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Protocol

from server.terminal.bench.records import TokenCounts
from server.terminal.bench.workload import Content, History

SIMULATED = ", a SIMULATION, whose times say nothing of a card"
"""What stands behind the name of a simulated device."""


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What a target says of itself before the load.

    Attributes:
        shown: Words and what they are, for the report.
        vocab_size, max_model_len: None when it does not say.
    """

    shown: dict[str, str]
    vocab_size: int | None = None
    max_model_len: int | None = None
    eos_token_ids: tuple[int, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class AskOptions:
    """What all requests of a run have in common.

    Attributes:
        model: None: the one that is served.
        ignore_eos: Answers go on to the length that they may have. No part of OpenAI's protocol;
            left out of requests when False.
        timeout_s: Of a whole request; None waits without end.
    """

    model: str | None = None
    temperature: float = 0.0
    ignore_eos: bool = True
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event of an answer brings.

    Attributes:
        num_tokens: How many, or 1 where the protocol does not tell; 0: none.
        content: Their text or ids, for the turn that follows.
        finish_reason: On the last event, in the words of OpenAI: stop, length; empty before.
        error: Why the answer is not whole, after it was accepted.
        counts: The server's, of the whole request; on one of its pieces, if at all.
    """

    num_tokens: int
    content: Content
    finish_reason: str = ""
    error: str = ""
    counts: TokenCounts | None = None


class Target(Protocol):
    """Used from one event loop."""

    async def facts(self) -> TargetFacts:
        """What it says of itself.

        Raises:
            OmError: It cannot be reached, or refuses.
        """

    def ask(self, history: History, num_output_tokens: int) -> AsyncGenerator[Piece, None]:
        """Send one request; the pieces of its answer as they arrive.

        Raises:
            OmError: It was refused, or broke off; `CallError` has its code.
        """

    async def count_tokens(self, text: str) -> int | None:
        """Tokens of a text; None when the target has no way to say.

        Raises:
            OmError: It cannot be reached, or refuses.
        """

    async def close(self) -> None:
        """Cancel what runs."""
