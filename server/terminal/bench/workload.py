"""What is to be sent: conversations of turns, each with the length of its answer."""

from __future__ import annotations

from dataclasses import dataclass

Content = str | tuple[int, ...]
"""A part of a prompt, or an answer: text or token ids."""

History = tuple[Content, ...]
"""Turns and answers by turns, beginning and ending with a turn."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request.

    Attributes:
        content: What it adds to the turns and answers before it, which are sent again.
        num_prompt_tokens: Of `content`; None when only the server can count them.
        num_output_tokens: Most tokens of the answer.
        think_s: From the end of the answer before it, if there is one, to its being due.
    """

    content: Content
    num_prompt_tokens: int | None
    num_output_tokens: int
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns that follow each other.

    Attributes:
        arrival_s: When the first is due, from the start; None: as soon as there is a place.
    """

    turns: tuple[Turn, ...]
    arrival_s: float | None = None

    @property
    def most_tokens(self) -> int | None:
        """Of the last prompt and its answer at most; None when only the server can tell."""
        total = 0
        for turn in self.turns:
            if turn.num_prompt_tokens is None:
                return None
            total += turn.num_prompt_tokens + turn.num_output_tokens
        return total


def joined(history: History) -> Content:
    """All of it in one piece, as a model that knows no roles continues it."""
    if all(isinstance(part, str) for part in history):
        return "".join(part for part in history if isinstance(part, str))
    assert not any(isinstance(part, str) for part in history), "one kind of content in a history"
    return tuple(token_id for part in history for token_id in part if isinstance(token_id, int))
