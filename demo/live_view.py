"""Streams side by side: one row for each on a terminal, marked lines elsewhere."""

from __future__ import annotations

import shutil
import time
import unicodedata
from typing import TextIO

_MIN_REDRAW_S = 0.1
_LINE_WIDTH = 76


class LiveView:
    """Shows what each stream says while it says it; call `finish` at the end."""

    def __init__(self, stream: TextIO, num_rows: int) -> None:
        self._stream = stream
        self._texts = [""] * num_rows
        self._on_terminal = stream.isatty()
        self._num_drawn = 0
        self._drawn_s = 0.0

    def add(self, index: int, text: str) -> None:
        """Append to one stream's text."""
        self._texts[index] += text
        if not self._on_terminal:
            self._write_whole_lines(index)
        elif time.monotonic() - self._drawn_s >= _MIN_REDRAW_S:
            self._draw()

    def finish(self) -> None:
        """Show what is left."""
        if self._on_terminal:
            self._draw()
            return
        for index, text in enumerate(self._texts):
            if text:
                self._write_line(index, text)

    def _draw(self) -> None:
        width = shutil.get_terminal_size().columns - 1
        if self._num_drawn:
            self._stream.write(f"\x1b[{self._num_drawn}A")
        for index, text in enumerate(self._texts):
            mark = f"[{index}] "
            shown = tail(printable(text), width - len(mark))
            self._stream.write(f"\r\x1b[2K{mark}{shown}\n")
        self._stream.flush()
        self._num_drawn = len(self._texts)
        self._drawn_s = time.monotonic()

    def _write_whole_lines(self, index: int) -> None:
        """Write complete lines, and break long ones at a space."""
        while True:
            text = self._texts[index]
            line, newline, rest = text.partition("\n")
            if not newline:
                if len(text) <= _LINE_WIDTH:
                    return
                cut = text.rfind(" ", 1, _LINE_WIDTH)
                cut = cut if cut > 0 else _LINE_WIDTH
                line, rest = text[:cut], text[cut:].lstrip(" ")
            self._texts[index] = rest
            self._write_line(index, line)

    def _write_line(self, index: int, line: str) -> None:
        if line.strip():
            self._stream.write(f"[{index}] {printable(line)}\n")
            self._stream.flush()


def printable(text: str) -> str:
    """Text without what would steer a terminal; line breaks become spaces."""
    spaced = text.replace("\n", " ").replace("\t", " ")
    return "".join(c for c in spaced if unicodedata.category(c)[0] != "C")


def tail(text: str, width: int) -> str:
    """The last characters of a text that fit into so many columns."""
    start = len(text)
    while start > 0:
        columns = 2 if unicodedata.east_asian_width(text[start - 1]) in "WF" else 1
        if columns > width:
            break
        width -= columns
        start -= 1
    return text[start:]
