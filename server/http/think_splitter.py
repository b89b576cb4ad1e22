"""ThinkSplitter: the text of an answer -> what the model thought, and what it says.

Incremental: each piece of text gives what may go out already. White space at the edges of a
thought, and before what follows it, belongs to the format and is left out.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from server.http.tag_search import tail_length

OPEN, CLOSE = "<think>", "</think>"


class Split(NamedTuple):
    """The next text of each kind; a thought stands before all content."""

    thought: str
    content: str


class _Place(Enum):
    BEFORE = "before"
    INSIDE = "inside"
    BEHIND = "behind"


class ThinkSplitter:
    """Reads one answer, whose thought stands at its beginning or nowhere."""

    def __init__(self, is_open: bool) -> None:
        """Begin.

        Args:
            is_open: The prompt has opened the thought already; models may open it once more.
        """
        self._is_open = is_open
        self._place = _Place.BEFORE
        self._held = ""
        self._is_edge = True

    @property
    def is_inside(self) -> bool:
        """Whether the text has got into the thought, as far as is known."""
        return self._place is _Place.INSIDE or (self._place is _Place.BEFORE and self._is_open)

    def push(self, text: str) -> Split:
        """What the next text gives."""
        self._held += text
        if self._place is _Place.BEFORE:
            self._begin()
        thought = self._read_thought() if self._place is _Place.INSIDE else ""
        content = self._read_content() if self._place is _Place.BEHIND else ""
        return Split(thought, content)

    def flush(self) -> Split:
        """What was held back, at the end of the answer."""
        held, self._held = self._held, ""
        if self._place is _Place.BEHIND:
            return Split("", "")
        if self.is_inside:
            return Split(held.strip() if self._is_edge else held.rstrip(), "")
        return Split("", held)

    def _begin(self) -> None:
        text = self._held.lstrip()
        if text.startswith(OPEN):
            self._held = text.removeprefix(OPEN)
            self._place = _Place.INSIDE
        elif not OPEN.startswith(text):
            self._place = _Place.INSIDE if self._is_open else _Place.BEHIND
            self._is_edge = self._is_open

    def _read_thought(self) -> str:
        thought, tag, rest = self._held.partition(CLOSE)
        if self._is_edge:
            thought = thought.lstrip()
        if tag:
            self._held, self._place, self._is_edge = rest, _Place.BEHIND, True
            return thought.rstrip()
        text = thought[: len(thought) - tail_length(thought, CLOSE)].rstrip()
        self._held = thought[len(text) :]
        self._is_edge = self._is_edge and not text
        return text

    def _read_content(self) -> str:
        content, self._held = self._held, ""
        if self._is_edge:
            content = content.lstrip()
        self._is_edge = self._is_edge and not content
        return content
