"""A target in memory that answers as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from server.terminal.bench.records import TokenCounts
from server.terminal.bench.targets.target import Piece, TargetFacts
from server.terminal.bench.workload import Conversation, History, Turn

Answer = list[Piece | Exception]


def two_tokens(_history: History) -> Answer:
    """Two events of one token, then the end."""
    counts = TokenCounts(3, 2, 0)
    return [Piece(1, (7,)), Piece(1, (8,)), Piece(0, (), "length", counts=counts)]


@dataclass
class ScriptedTarget:
    """Attributes:
    script: The pieces of an answer, and what to raise.
    pause: Runs before each piece.
    histories: All that it was asked.
    """

    script: Callable[[History], Answer] = two_tokens
    pause: Callable[[], object] | None = None
    histories: list[History] = field(default_factory=list)
    num_live: int = 0
    most_live: int = 0

    async def facts(self) -> TargetFacts:
        return TargetFacts({"target": "scripted"})

    async def ask(self, history: History, num_output_tokens: int) -> AsyncGenerator[Piece, None]:
        self.histories.append(history)
        self.num_live += 1
        self.most_live = max(self.most_live, self.num_live)
        try:
            for item in self.script(history):
                await asyncio.sleep(0)
                if self.pause is not None:
                    waiting = self.pause()
                    if asyncio.iscoroutine(waiting):
                        await waiting
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.num_live -= 1

    async def count_tokens(self, text: str) -> int | None:
        return None

    async def close(self) -> None: ...


def conversation(arrival_s: float | None = None, turns: int = 1) -> Conversation:
    """Turns of one token each, whose answers have two."""
    return Conversation(tuple(Turn((n,), 1, 2) for n in range(turns)), arrival_s)
