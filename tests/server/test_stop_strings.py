"""StopMatcher: the result does not depend on how the text came in pieces."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from server.stop_strings import StopMatcher

texts = st.text("ab", max_size=30)
stops = st.lists(st.text("ab", min_size=1, max_size=6), max_size=4)


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({min(place, len(text)) for place in places} | {0, len(text)})
    return [text[i:j] for i, j in itertools.pairwise(ends)]


def search_whole(text: str, stop: list[str], first: int, include: bool) -> tuple[str, str | None]:
    """The rule on the whole text; matches that end before `first` do not count."""
    for end in range(first, len(text) + 1):
        for string in sorted(stop, key=len, reverse=True):
            if text[:end].endswith(string):
                return text[: end if include else end - len(string)], string
    return text, None


def search_pieces(
    pieces: list[str], matcher: StopMatcher, num_unarmed: int = 0
) -> tuple[str, str | None]:
    sent = ""
    for index, piece in enumerate(pieces):
        searched = matcher.push(piece, armed=index >= num_unarmed)
        sent += searched.text
        if searched.matched is not None:
            assert matcher.flush() == ""
            return sent, searched.matched
    return sent + matcher.flush(), None


@example(text="aabaaabaaac", stop=["aabaaac"], places=[], include=False)
@given(text=texts, stop=stops, places=st.lists(st.integers(0, 30)), include=st.booleans())
def test_any_cutting_gives_what_one_search_gives(
    text: str, stop: list[str], places: list[int], include: bool
) -> None:
    """BL-21: no stop string is missed, leaks a first part or swallows the end."""
    found = search_pieces(cut(text, places), StopMatcher(stop, include))
    assert found == search_whole(text, stop, 1, include)


@given(early=texts, late=texts, stop=stops, places=st.lists(st.integers(0, 30)))
def test_a_match_within_the_unarmed_text_does_not_count(
    early: str, late: str, stop: list[str], places: list[int]
) -> None:
    """BL-23: one that ends after it does, wherever it begins."""
    found = search_pieces([early, *cut(late, places)], StopMatcher(stop, False), num_unarmed=1)
    assert found == search_whole(early + late, stop, len(early) + 1, False)


@given(text=texts, stop=stops, places=st.lists(st.integers(0, 30)))
def test_no_more_is_held_back_than_a_stop_string_may_begin_with(
    text: str, stop: list[str], places: list[int]
) -> None:
    matcher, sent, seen = StopMatcher(stop, False), "", ""
    for piece in cut(text, places):
        searched = matcher.push(piece)
        if searched.matched is not None:
            return
        sent, seen = sent + searched.text, seen + piece
        held = seen[len(sent) :]
        assert seen.startswith(sent)
        assert held == "" or any(string.startswith(held) for string in stop)
        for start in range(len(sent)):
            assert not any(string.startswith(seen[start:]) for string in stop)


def test_text_that_turns_out_harmless_is_sent_at_once() -> None:
    """BL-21: the held-back "8," is delivered."""
    matcher = StopMatcher(["8, 9!"], False)
    assert [matcher.push(piece).text for piece in (" 7,", " 8", ",", " 9", "?")] == [
        " 7,",
        " ",
        "",
        "",
        "8, 9?",
    ]
    assert matcher.push(" 8,").text == " "
    assert matcher.flush() == "8,"


@pytest.mark.parametrize(("include", "sent"), [(False, " 4, 5, "), (True, " 4, 5, 6, 7")])
def test_a_match_over_tokens_cuts_the_text(include: bool, sent: str) -> None:
    """BL-21: "6, 7" is found over token borders; nothing of it leaks unless asked for."""
    pieces = [" 4", ",", " 5", ",", " ", "6", ",", " ", "7", ",", " 8"]
    assert search_pieces(pieces, StopMatcher(["6, 7"], include)) == (sent, "6, 7")


def test_without_stop_strings_all_text_passes_at_once() -> None:
    matcher = StopMatcher([], False)
    assert matcher.push("anything").text == "anything"
    assert matcher.flush() == ""
