"""The page: whole, of itself alone, and harmless whatever a server says.

A browser looks at it in `test_ui.py`, which has one open.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.terminal.bench.curves import (
    MAX_POINTS,
    cumulative,
    in_flight_over_time,
    tokens_over_time,
)
from server.terminal.bench.metrics import DEFINITIONS
from server.terminal.bench.records import TokenCounts
from server.terminal.bench.report_html import html_report
from server.terminal.bench.svg_chart import HEIGHT, WIDTH, chart
from tests.server.terminal.bench.example_page import PAGE, REJECTED, record_of, result_of


class Tags(HTMLParser):
    """What a page consists of; fails on tags that do not close each other."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.attributes: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_holds_everything_and_loads_nothing() -> None:
    tags = Tags()
    tags.feed(PAGE)
    assert tags.open == []
    assert {"script", "img", "link", "iframe"}.isdisjoint(tags.seen)
    assert {"src", "href", "onerror", "style"}.isdisjoint(tags.attributes)
    assert "default-src 'none'" in PAGE
    assert re.findall(r"https?://(?!x )", PAGE) == []
    assert "prefers-color-scheme: dark" in PAGE
    assert tags.seen.count("svg") == 4
    assert all(f"<dt>{name}</dt>" in PAGE for name in DEFINITIONS)
    assert "The client limits these figures" in PAGE
    assert "1 rejected" in PAGE


def test_every_drawing_is_well_formed_and_inside_of_its_frame() -> None:
    for svg in re.findall(r"<svg.*?</svg>", PAGE):
        for line in ElementTree.fromstring(svg).iter("polyline"):
            for x, y in (map(float, pair.split(",")) for pair in line.attrib["points"].split()):
                assert 0 <= x <= WIDTH
                assert 0 <= y <= HEIGHT


def test_a_run_without_answers_has_a_page_too() -> None:
    assert "nothing was measured" in html_report(result_of([REJECTED]))
    assert "nothing was measured" in chart("t", "x", "y", {"a": []})


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=1000))
def test_a_cumulative_curve_rises_from_the_least_value_to_all_at_the_greatest(
    values: list[float],
) -> None:
    points = cumulative(values)
    assert points == sorted(points)
    assert points[0][0] == min(values)
    assert points[-1] == (max(values), 1.0)
    assert len(points) <= MAX_POINTS + 1
    for value, share in points:
        assert sum(v <= value for v in values) >= share * len(values) - 1e-9


def test_tokens_over_time_are_all_of_them() -> None:
    records = [record_of(n) for n in range(6)]
    # The server counted twice as many as events said, as over HTTP.
    records[0].counts = TokenCounts(9, 10, 0)
    points = tokens_over_time(records, 3.2)
    slice_s = 3.2 / len(points)
    assert sum(rate * slice_s for _, rate in points) == pytest.approx(35)


def test_in_flight_goes_up_and_down_by_the_records() -> None:
    points = in_flight_over_time([record_of(0), record_of(1)])
    wanted = [(0.0, 0), (0.0, 1), (0.5, 1), (0.5, 2), (0.7, 2), (0.7, 1), (1.2, 1), (1.2, 0)]
    assert points == [(pytest.approx(x), y) for x, y in wanted]
    many = in_flight_over_time([record_of(n) for n in range(2000)])
    assert len(many) <= 4 * MAX_POINTS
    assert max(level for _, level in many) == 2
