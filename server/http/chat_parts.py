"""The parts of an answer as chat completions have them: a message, or deltas of one."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from server.http.answer_reader import AnswerPiece, Thought


def message_of(pieces: Iterable[AnswerPiece]) -> dict[str, object]:
    """The message of a whole answer; content is null when there is only something else."""
    thought, content = "", ""
    calls: list[dict[str, str]] = []
    for piece in pieces:
        if isinstance(piece, Thought):
            thought += piece.text
        elif isinstance(piece, str):
            content += piece
        elif piece.name is not None:
            calls.append({"name": piece.name, "arguments": piece.arguments})
        else:
            calls[piece.index]["arguments"] += piece.arguments
    message: dict[str, object] = {"role": "assistant", "content": content, "refusal": None}
    if thought:
        message["reasoning_content"] = thought
    if thought or calls:
        message["content"] = content or None
    if calls:
        message["tool_calls"] = [
            {"id": new_call_id(), "type": "function", "function": call} for call in calls
        ]
    return message


def delta_of(piece: AnswerPiece) -> dict[str, object]:
    """What a piece adds: a thought, content, the opening of a call, or some of its arguments."""
    if isinstance(piece, Thought):
        return {"reasoning_content": piece.text}
    if isinstance(piece, str):
        return {"content": piece}
    function = {"arguments": piece.arguments}
    if piece.name is None:
        return {"tool_calls": [{"index": piece.index, "function": function}]}
    opening = {"index": piece.index, "id": new_call_id(), "type": "function"}
    return {"tool_calls": [opening | {"function": {"name": piece.name} | function}]}


def new_call_id() -> str:
    """An id for a call, which its result names."""
    return f"call_{uuid.uuid4().hex}"
