"""Spans: runs of addresses, and whether they touch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Addresses from `start` up to, but not including, `end`."""

    start: int
    end: int

    @staticmethod
    def of(address: int, nbytes: int) -> Span:
        """`nbytes` from `address` on."""
        return Span(address, address + nbytes)

    @property
    def nbytes(self) -> int:
        """How many addresses."""
        return self.end - self.start

    def overlaps(self, other: Span) -> bool:
        """Whether any address is in both."""
        return self.start < other.end and other.start < self.end

    def __str__(self) -> str:
        return f"{self.start:#x}..{self.end:#x}"


def any_overlap(spans: Iterable[Span], others: Iterable[Span]) -> bool:
    """Whether any span touches any of the others."""
    others = tuple(others)
    return any(span.overlaps(other) for span in spans for other in others)
