"""AnswerReader: the text of one answer -> what was thought, what is said, and which calls it holds.

What these look like in a body is the routes' business, see `chat_parts.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from server.http.call_parser import CallPiece, Piece
from server.http.think_splitter import ThinkSplitter
from server.http.tools import ToolPlan
from server.text import TextDelta


@dataclass(frozen=True, slots=True)
class Thought:
    """The next piece of what the model thought; stands before all else."""

    text: str


AnswerPiece = Thought | Piece


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """How the answers of one request are read.

    Attributes:
        tools: None: no call is looked for.
        new_splitter: Makes what finds the thought of an answer; None: none is looked for.
    """

    tools: ToolPlan | None = None
    new_splitter: Callable[[], ThinkSplitter] | None = None


class AnswerReader:
    """Reads one answer, delta by delta.

    Attributes:
        num_calls: How many calls have begun.
        num_thought_tokens: How many tokens the thought took, its tags included.
    """

    def __init__(self, plan: ReadingPlan) -> None:
        self._splitter = None if plan.new_splitter is None else plan.new_splitter()
        self._parser = None if plan.tools is None else plan.tools.new_parser()
        self.num_calls = 0
        self.num_thought_tokens = 0

    def read(self, delta: TextDelta) -> list[AnswerPiece]:
        """What the next text gives; a string is content."""
        is_last = delta.finish_reason is not None
        thought, content = self._split(delta, is_last)
        found: list[AnswerPiece] = [Thought(thought)] if thought else []
        return found + self._calls(content, is_last)

    def _split(self, delta: TextDelta, is_last: bool) -> tuple[str, str]:
        if self._splitter is None:
            return "", delta.text
        was_inside = self._splitter.is_inside
        thought, content = self._splitter.push(delta.text)
        if was_inside or self._splitter.is_inside:
            self.num_thought_tokens += len(delta.token_ids)
        if is_last:
            last = self._splitter.flush()
            return thought + last.thought, content + last.content
        return thought, content

    def _calls(self, text: str, is_last: bool) -> list[Piece]:
        if self._parser is None:
            return [text] if text else []
        found = self._parser.push(text)
        if is_last:
            found += self._parser.flush()
        self.num_calls += sum(isinstance(p, CallPiece) and p.name is not None for p in found)
        return found


class FirstCallWatch:
    """Fits `TextWatch`: an answer is complete with its first call."""

    def __init__(self, plan: ReadingPlan) -> None:
        assert plan.tools is not None
        self._splitter = None if plan.new_splitter is None else plan.new_splitter()
        self._parser = plan.tools.new_parser()

    def push(self, text: str) -> bool:
        """Whether a call has come to its end."""
        self._parser.push(text if self._splitter is None else self._splitter.push(text).content)
        return self._parser.has_whole_call


class AnswerReaders:
    """Reads all answers of one request, whose deltas come in any order."""

    def __init__(self, plan: ReadingPlan) -> None:
        self._plan = plan
        self._by_index: dict[int, AnswerReader] = {}

    def __contains__(self, index: int) -> bool:
        """Whether the answer has begun."""
        return index in self._by_index

    def read(self, delta: TextDelta) -> list[AnswerPiece]:
        """As `AnswerReader.read`."""
        if delta.index not in self._by_index:
            self._by_index[delta.index] = AnswerReader(self._plan)
        return self._by_index[delta.index].read(delta)

    def reason(self, index: int, reason: str | None) -> str | None:
        """OpenAI's finish reason of an answer, once all of it was read."""
        has_calls = self._by_index[index].num_calls > 0
        return "tool_calls" if reason == "stop" and has_calls else reason

    def usage(self) -> dict[str, object]:
        """What OpenAI's usage says beside the counts of all; nothing when no thought is sought."""
        if self._plan.new_splitter is None:
            return {}
        num_tokens = sum(reader.num_thought_tokens for reader in self._by_index.values())
        return {"completion_tokens_details": {"reasoning_tokens": num_tokens}}
