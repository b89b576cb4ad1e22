"""`om-client top`: a server's load in a terminal, again and again, until Ctrl-C."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from server.pb import control_pb2 as pb
from server.terminal.top_figures import FigureHistory
from server.terminal.top_view import BARS, HEADINGS, frame, line

# Another screen and no cursor, so that what was there comes back; then home, and what each line
# and the screen has left of before is cleared. Every terminal since the VT100's heirs knows them.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
# For terminals without Unicode.
_ASCII_BARS = str.maketrans(BARS, "_.-=+*%#")


def run_top(snapshots: Iterable[pb.WatchLoadResponse]) -> int:
    """Show snapshots as they come; 0 also when Ctrl-C ends it, as nothing else does."""
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    try:
        if is_terminal:
            _draw(snapshots)
        else:
            _print_lines(snapshots)
    except KeyboardInterrupt:
        return 0
    return 0


def _print_lines(snapshots: Iterable[pb.WatchLoadResponse]) -> None:
    history = FigureHistory()
    for snapshot in snapshots:
        print(line(history.push(snapshot), snapshot), flush=True)


def _draw(snapshots: Iterable[pb.WatchLoadResponse]) -> None:
    history = FigureHistory()
    with _own_screen():
        for snapshot in snapshots:
            history.push(snapshot)
            lines = frame(history, snapshot, shutil.get_terminal_size()).split("\n")
            shown = "\n".join(map(_drawn, lines))
            sys.stdout.write(f"{_HOME}{shown}{_BELOW}")
            sys.stdout.flush()


def _drawn(text: str) -> str:
    """A line as it is sent, with nothing of the line before behind it."""
    if "utf" not in sys.stdout.encoding.lower():
        text = text.translate(_ASCII_BARS)
    if text.startswith(HEADINGS):
        text = f"{_BOLD}{text}{_PLAIN}"
    return f"{text}{_END_OF_LINE}"


@contextmanager
def _own_screen() -> Iterator[None]:
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
