"""Made-up contents of prompts: token ids or words at random, in a given number."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from server.terminal.bench.workload import Content

# Everyday words, which most tokenizers have as one token each behind a space.
_TEXT = """
time year people way day man thing woman life child world school state family student
group country problem hand part place case week company system program question work
government number night point home water room mother area money story fact month lot right
study book eye job word business issue side kind head house service friend father power
hour game line end member law car city community name president team minute idea body
information back parent face others level office door health person art war history party
result change morning reason research girl guy moment air teacher force education
"""
WORDS = tuple(_TEXT.split())


class Contents(Protocol):
    """A kind of made-up prompts."""

    def make(self, source: random.Random, num_tokens: int) -> Content:
        """A content that no other is expected to equal."""


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Ids of the whole vocabulary alike, but those that end answers: lengths are exact."""

    vocab_size: int
    left_out: Collection[int] = ()

    def make(self, source: random.Random, num_tokens: int) -> Content:
        """See `Contents`."""
        return tuple(self._draw(source) for _ in range(num_tokens))

    def _draw(self, source: random.Random) -> int:
        while (token_id := source.randrange(self.vocab_size)) in self.left_out:
            pass
        return token_id


@dataclass(frozen=True, slots=True)
class Words:
    """As many words as tokens are wanted; the server's tokenizer decides how many it makes."""

    def make(self, source: random.Random, num_tokens: int) -> Content:
        """See `Contents`."""
        return "".join(f" {source.choice(WORDS)}" for _ in range(num_tokens))
