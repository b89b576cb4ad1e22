"""StopMatcher: finds stop strings in text that comes in pieces.

What it finds does not depend on how the text was cut into pieces: the match that ends first
wins, and of those that end together the longest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Searched:
    """Text that may go out, and the stop string that ended it, if one did."""

    text: str
    matched: str | None = None


class StopMatcher:
    """Holds back the longest end of the text that a stop string may begin with."""

    def __init__(self, stop: Iterable[str], include_stop: bool) -> None:
        """Prepare the search.

        Args:
            stop: Strings of at least one character; none means that all text passes.
            include_stop: Whether the text that goes out ends with the matched string.
        """
        # Longest first: of matches that end together the first found wins.
        self._patterns = [_Pattern(s) for s in sorted(set(stop), key=lambda s: (-len(s), s))]
        self._include_stop = include_stop
        self._held = ""

    def push(self, text: str, armed: bool = True) -> Searched:
        """Search the next piece.

        Args:
            text: Follows what was pushed before.
            armed: Whether a stop string that ends within this piece counts.

        Returns:
            The text that no stop string can take away any more. After a match nothing may be
            pushed, and nothing is left to flush.
        """
        if not self._patterns:
            return Searched(text)
        pending = self._held + text
        for place, character in enumerate(text, start=len(self._held) + 1):
            matched = self._advance(character)
            if matched is not None and armed:
                self._held = ""
                end = place if self._include_stop else place - len(matched)
                return Searched(pending[:end], matched)
        num_held = max(pattern.num_matching for pattern in self._patterns)
        start = len(pending) - num_held
        self._held = pending[start:]
        return Searched(pending[:start])

    def flush(self) -> str:
        """End the text; returns what was held back."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        completed = [p.string for p in self._patterns if p.advance(character)]
        return completed[0] if completed else None


class _Pattern:
    """One stop string as the automaton of Knuth, Morris and Pratt: constant work a character.

    Attributes:
        num_matching: How many of the string's first characters the text ends with.
    """

    def __init__(self, string: str) -> None:
        self.string = string
        self.num_matching = 0
        self._shorter = _shorter_matches(string)

    def advance(self, character: str) -> bool:
        """Take the next character; returns whether the string is complete."""
        length = self.num_matching
        while length > 0 and self.string[length] != character:
            length = self._shorter[length]
        if self.string[length] == character:
            length += 1
        complete = length == len(self.string)
        self.num_matching = self._shorter[length] if complete else length
        return complete


def _shorter_matches(string: str) -> list[int]:
    """For each number of matching characters the next smaller one that also matches."""
    shorter = [0, 0]
    length = 0
    for character in string[1:]:
        while length > 0 and string[length] != character:
            length = shorter[length]
        if string[length] == character:
            length += 1
        shorter.append(length)
    return shorter
