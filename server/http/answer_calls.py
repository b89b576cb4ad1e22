"""AnswerCalls: one answer's text -> OpenAI's message or deltas, with the calls that it holds."""

from __future__ import annotations

import uuid

from server.http.call_parser import CallPiece, Piece
from server.http.tools import ToolPlan


class AnswerCalls:
    """Reads one answer, whole or piece by piece."""

    def __init__(self, plan: ToolPlan | None) -> None:
        """Begin; without a plan all is content."""
        self._parser = None if plan is None else plan.new_parser()
        self._is_parallel = plan is None or plan.is_parallel
        self._num_calls = 0

    def deltas(self, text: str, is_last: bool) -> list[dict[str, object]]:
        """What the next text adds: content, the opening of a call, or a piece of arguments."""
        return [self._delta(piece) for piece in self._pieces(text, is_last)]

    def message(self, text: str) -> dict[str, object]:
        """The whole answer; content is null when there are calls alone."""
        content = ""
        calls: list[dict[str, str]] = []
        for piece in self._pieces(text, is_last=True):
            if isinstance(piece, str):
                content += piece
            elif piece.name is not None:
                calls.append({"name": piece.name, "arguments": piece.arguments})
            else:
                calls[piece.index]["arguments"] += piece.arguments
        message: dict[str, object] = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message["content"] = content or None
            message["tool_calls"] = [
                {"id": _new_id(), "type": "function", "function": call} for call in calls
            ]
        return message

    def reason(self, reason: str | None) -> str | None:
        """OpenAI's finish reason, once all text was read."""
        return "tool_calls" if reason == "stop" and self._num_calls else reason

    def _pieces(self, text: str, is_last: bool) -> list[Piece]:
        if self._parser is None:
            return [text] if text else []
        found = self._parser.push(text)
        if is_last:
            found += self._parser.flush()
        if not self._is_parallel:
            found = [p for p in found if isinstance(p, str) or p.index == 0]
        self._num_calls += sum(isinstance(p, CallPiece) and p.name is not None for p in found)
        return found

    def _delta(self, piece: Piece) -> dict[str, object]:
        if isinstance(piece, str):
            return {"content": piece}
        function = {"arguments": piece.arguments}
        if piece.name is None:
            return {"tool_calls": [{"index": piece.index, "function": function}]}
        opening = {"index": piece.index, "id": _new_id(), "type": "function"}
        return {"tool_calls": [opening | {"function": {"name": piece.name} | function}]}


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex}"
