"""OutputItems: the pieces of one answer -> the items of a response, and the events that tell them.

A thought is an item, so is a text, and so is each call; one ends when another begins.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from server.http.answer_reader import AnswerPiece, Thought
from server.http.call_parser import CallPiece
from server.http.chat_parts import new_call_id

Event = dict[str, object]


class OutputItems:
    """Grows by pieces.

    Attributes:
        items: As a response lists them; the last one is in progress until `finish`.
    """

    def __init__(self) -> None:
        self.items: list[dict[str, object]] = []
        self._open: _OpenItem | None = None

    def accept(self, piece: AnswerPiece) -> Iterator[Event]:
        """The events of one more piece."""
        if self._open is None or not self._open.continues(piece):
            yield from self.finish("completed")
            self._open = _opened(piece, len(self.items))
            self.items.append(self._open.item)
            yield from self._open.begin()
        yield from self._open.grow(_text_of(piece))

    def finish(self, status: str) -> Iterator[Event]:
        """The events that end the item in progress, if there is one.

        Args:
            status: completed, or incomplete for one that was cut.
        """
        if self._open is not None:
            done, self._open = self._open, None
            yield from done.end(status)
            self.items[-1] = done.item


def _text_of(piece: AnswerPiece) -> str:
    if isinstance(piece, CallPiece):
        return piece.arguments
    return piece.text if isinstance(piece, Thought) else piece


@dataclass(slots=True)
class _OpenItem:
    """An item in progress.

    Attributes:
        item: As it looks when it begins.
        index: Its place among the items.
        part: The one part of its content, empty; None: its text is its arguments.
        event: What the events of its text are called, without their last word.
        marks: What those events have beside the text.
    """

    item: Event
    index: int
    part: Event | None
    event: str
    marks: Event
    pieces: list[str] = field(default_factory=list)

    def continues(self, piece: AnswerPiece) -> bool:
        """Whether the piece belongs to the item."""
        if isinstance(piece, CallPiece):
            return self.part is None and piece.name is None
        return self.item["type"] == ("reasoning" if isinstance(piece, Thought) else "message")

    def begin(self) -> Iterator[Event]:
        """The item and its part as they begin."""
        yield self._whole("response.output_item.added", self.item)
        if self.part is not None:
            yield self._about("response.content_part.added", content_index=0, part=self.part)

    def grow(self, text: str) -> Iterator[Event]:
        """One more piece of its text."""
        if text:
            self.pieces.append(text)
            yield self._about(f"{self.event}.delta", delta=text, **self.marks)

    def end(self, status: str) -> Iterator[Event]:
        """The whole text, part and item, which `item` is from now on."""
        text = "".join(self.pieces)
        if self.part is None:
            self.item = self.item | {"status": status, "arguments": text}
            yield self._about(f"{self.event}.done", arguments=text, name=self.item["name"])
        else:
            part = self.part | {"text": text}
            self.item = self.item | {"status": status, "content": [part]}
            yield self._about(f"{self.event}.done", text=text, **self.marks)
            yield self._about("response.content_part.done", content_index=0, part=part)
        yield self._whole("response.output_item.done", self.item)

    def _about(self, kind: str, **rest: object) -> Event:
        place = {"item_id": self.item["id"], "output_index": self.index}
        return {"type": kind, **place, **rest}

    def _whole(self, kind: str, item: Event) -> Event:
        return {"type": kind, "output_index": self.index, "item": item}


def _opened(piece: AnswerPiece, index: int) -> _OpenItem:
    if isinstance(piece, Thought):
        item = _item("rs", "reasoning", summary=[], content=[])
        part: Event = {"type": "reasoning_text", "text": ""}
        return _OpenItem(item, index, part, "response.reasoning_text", {"content_index": 0})
    if isinstance(piece, str):
        item = _item("msg", "message", role="assistant", content=[])
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        marks: Event = {"content_index": 0, "logprobs": []}
        return _OpenItem(item, index, part, "response.output_text", marks)
    item = _item("fc", "function_call", call_id=new_call_id(), name=piece.name, arguments="")
    return _OpenItem(item, index, None, "response.function_call_arguments", {})


def _item(prefix: str, kind: str, **rest: object) -> Event:
    return {"id": f"{prefix}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **rest}
