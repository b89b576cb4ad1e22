"""Parsers of tool calls: the text of an answer -> content and the calls that it writes down.

Incremental: each piece of text gives what may go out already. A call whose tool was not offered,
or that is no JSON object with a name, stays text. Which parser applies is `tools.py`.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from server.http.tag_search import tail_length

_ARGUMENTS = ("arguments", "parameters")
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_PYTHON_TAG = "<|python_tag|>"


@dataclass(frozen=True, slots=True)
class CallPiece:
    """The next piece of one call; `name` is on the first alone, `arguments` joined are JSON."""

    index: int
    arguments: str
    name: str | None = None


Piece = str | CallPiece


class CallParser(Protocol):
    """Reads one answer."""

    @property
    def has_whole_call(self) -> bool:
        """Whether a call has come to its end."""

    def push(self, text: str) -> list[Piece]:
        """What the next text gives; a string is content."""

    def flush(self) -> list[Piece]:
        """What was held back, at the end of the answer."""


class NamedCall:
    """The whole answer is the arguments of one tool."""

    has_whole_call = False
    """Only the end of the answer is the end of the call."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def push(self, text: str) -> list[Piece]:
        """As CallParser; the opening comes with the first text."""
        if not text:
            return []
        opening: list[Piece] = [] if self._name is None else [CallPiece(0, "", self._name)]
        self._name = None
        return [*opening, CallPiece(0, text)]

    def flush(self) -> list[Piece]:
        """Nothing is held back."""
        return []


class HermesCalls:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>` among text."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""
        self._object: _CallObject | None = None
        self._is_inside = False
        self._space = ""
        self._num_calls = 0

    @property
    def has_whole_call(self) -> bool:
        """As CallParser."""
        return self._num_calls > 0 or (self._object is not None and self._object.is_whole_call)

    def push(self, text: str) -> list[Piece]:
        """As CallParser."""
        self._held += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        return pieces

    def flush(self) -> list[Piece]:
        """A call that is not recognised by then is text."""
        held, self._held = self._held, ""
        if self._object is not None and not self._object.is_open:
            return [_OPEN + self._space + self._object.text + held]
        if self._is_inside:
            return [_OPEN + held] if self._object is None else []
        return [held] if held.strip() or (held and not self._num_calls) else []

    def _step(self, pieces: list[Piece]) -> bool:
        if not self._is_inside:
            return self._read_content(pieces)
        if self._object is None:
            body = self._held.lstrip()
            if not body:
                return False
            self._space = self._held[: -len(body)]
            self._held, self._object = body, _CallObject(self._names, self._num_calls)
        if not self._object.is_done:
            self._held = self._object.push(self._held, pieces)
        return self._object.is_done and self._leave(pieces)

    def _read_content(self, pieces: list[Piece]) -> bool:
        content, tag, rest = self._held.partition(_OPEN)
        if tag:
            self._is_inside, self._held = True, rest
        else:
            kept = tail_length(content, _OPEN)
            space = content[: len(content) - kept]
            # White space before a call belongs to the format, not to the content.
            kept += len(space) - len(space.rstrip())
            content, self._held = content[: len(content) - kept], content[len(content) - kept :]
        if content.strip():
            pieces.append(content.rstrip() if tag else content)
        return bool(tag)

    def _leave(self, pieces: list[Piece]) -> bool:
        """Past the closing tag, once it is known whether it is there."""
        assert self._object is not None
        rest = self._held.lstrip()
        if len(rest) < len(_CLOSE) and _CLOSE.startswith(rest):
            return False
        has_close = rest.startswith(_CLOSE)
        if self._object.is_open:
            self._num_calls += 1
        else:
            space = self._held[: len(self._held) - len(rest)]
            close = space + _CLOSE if has_close else ""
            pieces.append(_OPEN + self._space + self._object.text + close)
        self._held = rest.removeprefix(_CLOSE)
        self._object, self._is_inside = None, False
        return True


class JsonCalls:
    """The answer begins with a call's object; others follow after `;`, `,` or in an array.

    What Llama 3 writes, with or without `<|python_tag|>`, and what a constraint makes.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""
        self._object: _CallObject | None = None
        self._is_content = False
        self._num_calls = 0

    @property
    def has_whole_call(self) -> bool:
        """As CallParser."""
        return self._num_calls > 0 or (self._object is not None and self._object.is_whole_call)

    def push(self, text: str) -> list[Piece]:
        """As CallParser."""
        if self._is_content:
            return [text] if text else []
        self._held += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        return pieces

    def flush(self) -> list[Piece]:
        """What is no call by then is text."""
        held, self._held = self._held, ""
        if self._object is not None:
            held = "" if self._object.is_open else self._object.text
        elif self._num_calls and not held.strip(" \n\r\t;,]"):
            held = ""
        return [held] if held else []

    def _step(self, pieces: list[Piece]) -> bool:
        if self._object is None and not self._begin(pieces):
            return False
        assert self._object is not None
        self._held = self._object.push(self._held, pieces)
        if not self._object.is_done:
            return False
        if self._object.is_open:
            self._num_calls += 1
        else:
            self._give_up(self._object.text + self._held, pieces)
        self._object = None
        return not self._is_content

    def _begin(self, pieces: list[Piece]) -> bool:
        rest = self._held.lstrip(" \n\r\t;,[]" if self._num_calls else " \n\r\t[")
        if not rest or (len(rest) < len(_PYTHON_TAG) and _PYTHON_TAG.startswith(rest)):
            return False
        rest = rest.removeprefix(_PYTHON_TAG).lstrip()
        if rest.startswith("{"):
            self._held, self._object = rest, _CallObject(self._names, self._num_calls)
        elif rest:
            self._give_up(self._held, pieces)
        return bool(rest) and not self._is_content

    def _give_up(self, text: str, pieces: list[Piece]) -> None:
        self._is_content, self._held = True, ""
        pieces.append(text)


class _CallObject:
    """One call's JSON object, character by character.

    Attributes:
        text: All of it so far.
        is_open: Whether its opening went out, so that it is a call.
        is_done: Whether it has ended, or can be no call.
    """

    def __init__(self, names: Collection[str], index: int) -> None:
        self.text = ""
        self.is_open = self.is_done = False
        self._names, self._index = names, index
        self._depth = 0
        self._in_string = self._escaped = False
        self._key: str | None = None
        self._start: int | None = None
        self._values: dict[str, str] = {}
        self._num_sent = 0
        self._at = 0

    @property
    def is_whole_call(self) -> bool:
        """Whether it is a call, and has ended."""
        return self.is_open and self.is_done

    def push(self, text: str, pieces: list[Piece]) -> str:
        """Read up to the end of the object; gives the text behind it."""
        first, self.text = len(self.text), self.text + text
        rest = ""
        for at in range(first, len(self.text)):
            self._at = at
            self._read(self.text[at])
            if self.is_done:
                end = self._at + 1
                self.text, rest = self.text[:end], self.text[end:]
                break
        self._send(pieces)
        return rest

    def _read(self, sign: str) -> None:
        if self._at == 0 and sign != "{":
            self.is_done = True
        elif self._in_string:
            self._read_string(sign)
        elif sign == '"':
            self._in_string = True
            if self._depth == 1 and self._start is None:
                self._start = self._at
        else:
            self._read_mark(sign)

    def _read_string(self, sign: str) -> None:
        if self._escaped:
            self._escaped = False
        elif sign == "\\":
            self._escaped = True
        elif sign == '"':
            self._in_string = False
            if self._depth == 1 and self._key is None and self._start is not None:
                self._key = _text_of(self.text[self._start : self._at + 1])
                self._start = None

    def _read_mark(self, sign: str) -> None:
        if self._depth == 1 and sign in ",}":
            if self._key is not None and self._start is not None:
                # The first of a name, since it may have gone out already.
                self._values.setdefault(self._key, self.text[self._start : self._at].rstrip())
            self._key = self._start = None
        elif self._depth == 1 and self._start is None and sign not in ": \n\r\t":
            self._start = self._at
        if sign in "{[":
            self._depth += 1
        elif sign in "}]":
            self._depth -= 1
            self.is_done = self._depth == 0

    def _send(self, pieces: list[Piece]) -> None:
        name = _text_of(self._values.get("name", ""))
        if name not in self._names:
            return
        value = self._arguments()
        if value is None and not self.is_done:
            return
        if not self.is_open:
            self.is_open = True
            pieces.append(CallPiece(self._index, "", name))
        if value is None:
            value = "{}"
        if len(value) > self._num_sent:
            pieces.append(CallPiece(self._index, value[self._num_sent :]))
            self._num_sent = len(value)

    def _arguments(self) -> str | None:
        """The JSON so far; some models write it as a string, which waits for its end."""
        for key, value in self._values.items():
            if key in _ARGUMENTS:
                return (_text_of(value) or "{}") if value.startswith('"') else value
        if self._key in _ARGUMENTS and self._start is not None:
            value = self.text[self._start :].rstrip()
            return None if value.startswith('"') else value
        return None


def _text_of(literal: str) -> str:
    """What a JSON string says; empty when the literal is none."""
    if not literal.startswith('"'):
        return ""
    try:
        value: str = json.loads(literal)
    except ValueError:
        return ""
    # Half of a character, which a model may write as \ud83d, could not be sent.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
