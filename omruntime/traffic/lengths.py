"""Distributions of lengths in tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol


class Lengths(Protocol):
    """A distribution; every length is at least 1."""

    def draw(self, source: random.Random) -> int:
        """The next length."""

    @property
    def longest(self) -> int | None:
        """The greatest length that it gives; None when there is no limit."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    num_tokens: int

    def draw(self, source: random.Random) -> int:
        """See `Lengths`."""
        return self.num_tokens

    @property
    def longest(self) -> int | None:
        """See `Lengths`."""
        return self.num_tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    """All lengths from `least` to `most` alike, both included."""

    least: int
    most: int

    def draw(self, source: random.Random) -> int:
        """See `Lengths`."""
        return source.randint(self.least, self.most)

    @property
    def longest(self) -> int | None:
        """See `Lengths`."""
        return self.most


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Many short and a few long ones, as of conversations; longer than `most` becomes `most`.

    Attributes:
        sigma: Standard deviation of the logarithm.
    """

    median: int
    sigma: float
    most: int | None = None

    def draw(self, source: random.Random) -> int:
        """See `Lengths`."""
        length = round(source.lognormvariate(0.0, self.sigma) * self.median)
        return max(1, length if self.most is None else min(self.most, length))

    @property
    def longest(self) -> int | None:
        """See `Lengths`."""
        return self.most
