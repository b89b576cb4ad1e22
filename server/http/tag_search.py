"""Where a tag may begin in text that goes on."""

from __future__ import annotations


def tail_length(text: str, tag: str) -> int:
    """Length of the longest end of the text that may begin the tag."""
    lengths = range(min(len(text), len(tag) - 1), 0, -1)
    return next((n for n in lengths if tag.startswith(text[-n:])), 0)
