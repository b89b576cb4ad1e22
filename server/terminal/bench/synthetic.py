"""Made-up conversations: equal seeds give equal requests and arrival times."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from omruntime.traffic.arrivals import arrival_times
from omruntime.traffic.lengths import Lengths
from server.terminal.bench.contents import Contents
from server.terminal.bench.workload import Content, Conversation, Turn


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Beginnings that conversations have in common.

    Attributes:
        num_tokens: Of each; 0: none.
        num_prefixes: How many there are; each conversation draws one of them.
        fraction: Share of the conversations that begin with one, 0 to 1.
    """

    num_tokens: int = 0
    num_prefixes: int = 1
    fraction: float = 1.0


@dataclass(frozen=True, slots=True)
class SyntheticShape:
    """How made-up conversations look.

    Attributes:
        prompts: Tokens that each turn adds, the shared beginning aside.
        turns: Requests of each conversation.
        think_s: Mean of the exponential time between an answer and the next turn; 0: none.
    """

    prompts: Lengths
    outputs: Lengths
    prefixes: SharedPrefixes = SharedPrefixes()
    turns: int = 1
    think_s: float = 0.0


def source_of(seed: int | str, what: str) -> random.Random:
    """A generator of its own for each purpose: a new rate leaves the prompts as they were."""
    return random.Random(f"{seed} {what}")  # noqa: S311 - no secret, and it must be repeatable


def synthetic_conversations(
    shape: SyntheticShape, contents: Contents, count: int, seed: int | str
) -> list[Conversation]:
    """So many conversations, without arrival times."""
    maker = _Maker(shape, contents, seed)
    return [maker.make() for _ in range(count)]


class _Maker:
    def __init__(self, shape: SyntheticShape, contents: Contents, seed: int | str) -> None:
        self._shape = shape
        self._contents = contents
        self._lengths = source_of(seed, "lengths")
        self._words = source_of(seed, "contents")
        self._thoughts = source_of(seed, "think times")
        self._choices = source_of(seed, "prefixes")
        # From a generator of their own, so that they stay while everything else changes.
        words = source_of(seed, "shared contents")
        prefixes = shape.prefixes
        made = prefixes.num_prefixes if prefixes.num_tokens else 0
        self._prefixes = [contents.make(words, prefixes.num_tokens) for _ in range(made)]

    def make(self) -> Conversation:
        turns = list(self._turns())
        prefix = self._prefix()
        if prefix is not None:
            turns[0] = _behind(prefix, self._shape.prefixes.num_tokens, turns[0])
        return Conversation(tuple(turns))

    def _turns(self) -> Iterator[Turn]:
        for number in range(self._shape.turns):
            length = self._shape.prompts.draw(self._lengths)
            output = self._shape.outputs.draw(self._lengths)
            content = self._contents.make(self._words, length)
            yield Turn(content, length, output, self._think_s() if number else 0.0)

    def _think_s(self) -> float:
        mean = self._shape.think_s
        return self._thoughts.expovariate(1.0 / mean) if mean else 0.0

    def _prefix(self) -> Content | None:
        if not self._prefixes or self._choices.random() >= self._shape.prefixes.fraction:
            return None
        return self._choices.choice(self._prefixes)


def _behind(prefix: Content, num_tokens: int, turn: Turn) -> Turn:
    content = turn.content
    if isinstance(prefix, str) and isinstance(content, str):
        whole: Content = prefix + content
    else:
        assert not isinstance(prefix, str)
        assert not isinstance(content, str)
        whole = prefix + content
    assert turn.num_prompt_tokens is not None, "made-up lengths are known"
    return replace(turn, content=whole, num_prompt_tokens=num_tokens + turn.num_prompt_tokens)


def with_arrivals(
    conversations: list[Conversation], requests_a_second: float, burstiness: float, seed: int
) -> list[Conversation]:
    """The same conversations, arriving at random."""
    times = arrival_times(source_of(seed, "arrivals"), requests_a_second, burstiness)
    return [replace(each, arrival_s=next(times)) for each in conversations]
