"""Thoughts and contents of answers, whatever the pieces that they come in."""

from __future__ import annotations

import pytest

from server.http.think_splitter import ThinkSplitter


def split(text: str, is_open: bool, size: int) -> tuple[str, str]:
    """The joined thought and content of a text that comes in pieces of a size."""
    splitter = ThinkSplitter(is_open)
    pieces = [splitter.push(text[at : at + size]) for at in range(0, len(text), size)]
    pieces.append(splitter.flush())
    return "".join(p.thought for p in pieces), "".join(p.content for p in pieces)


@pytest.mark.parametrize(
    ("text", "is_open", "wanted"),
    [
        ("<think>\nHm, 1 < 2.\n\nSo\n</think>\n\nYes \n", False, ("Hm, 1 < 2.\n\nSo", "Yes \n")),
        ("Hm\n</think>\n\nYes", True, ("Hm", "Yes")),
        ("\n<think>\nHm\n</think>\nYes", True, ("Hm", "Yes")),
        ("<think>\n\n</think>\n\nYes", False, ("", "Yes")),
        ("\n Yes <think>no</think>", False, ("", "\n Yes <think>no</think>")),
        ("Hm</think>Yes</think>", True, ("Hm", "Yes</think>")),
        ("<think>Hm </thin", False, ("Hm </thin", "")),
        ("<think>Hm \n", False, ("Hm", "")),
        ("<thi", False, ("", "<thi")),
        ("<thi", True, ("<thi", "")),
        ("<think>Hm</think>\n", False, ("Hm", "")),
        (" ", False, ("", " ")),
        ("", True, ("", "")),
    ],
)
def test_every_size_of_pieces_gives_the_same(
    text: str, is_open: bool, wanted: tuple[str, str]
) -> None:
    for size in range(1, len(text) + 2):
        assert split(text, is_open, size) == wanted, size


def test_text_goes_out_as_soon_as_no_tag_can_begin_in_it() -> None:
    splitter = ThinkSplitter(is_open=True)
    assert splitter.push("Hm, 1 <") == ("Hm, 1", "")
    assert splitter.push(" 2") == (" < 2", "")
    assert splitter.push("</think>Yes") == ("", "Yes")
    assert splitter.push(" indeed") == ("", " indeed")
