from __future__ import annotations

import io

from demo.live_view import LiveView, printable, tail


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_are_marked_and_written_once() -> None:
    stream = io.StringIO()
    view = LiveView(stream, 2)
    view.add(0, "Hel")
    view.add(1, "one\n\ntwo")
    view.add(0, "lo\nwor")
    assert stream.getvalue() == "[1] one\n[0] Hello\n"
    view.add(0, "ld")
    view.finish()
    assert stream.getvalue() == "[1] one\n[0] Hello\n[0] world\n[1] two\n"


def test_long_lines_break_at_spaces_and_lose_nothing() -> None:
    stream = io.StringIO()
    view = LiveView(stream, 1)
    words = [f"word{number}" for number in range(60)]
    for word in words:
        view.add(0, word + " ")
    view.add(0, "x" * 200)
    view.finish()
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    text = " ".join(line.removeprefix("[0] ") for line in lines)
    assert text.split()[:60] == words
    assert text.count("x") == 200


def test_a_terminal_shows_the_end_of_each_stream_in_its_row() -> None:
    stream = Terminal()
    view = LiveView(stream, 2)
    view.add(0, "first")
    view.add(1, "second\nline")
    view.finish()
    frames = stream.getvalue().split("\x1b[2A")
    assert len(frames) == 2
    assert frames[-1] == "\r\x1b[2K[0] first\n\r\x1b[2K[1] second line\n"


def test_a_model_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[2Jb\r\nc\u202ed") == "a[2Jb cd"


def test_tail_counts_columns() -> None:
    assert tail("abcdef", 3) == "def"
    assert tail("ab", 3) == "ab"
    assert tail("漢字", 3) == "字"
    assert tail("abc", 0) == ""
