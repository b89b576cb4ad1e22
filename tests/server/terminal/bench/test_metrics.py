"""The figures are what their definitions say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omruntime.errors import RequestError
from server.terminal.bench.goodput import Goodput, parse_goodput
from server.terminal.bench.metrics import figures_of, summary_of
from server.terminal.bench.records import Outcome, Record, TokenCounts

# Due at 1 s, sent late, tokens at 2 s, 2.25 s and 3 s, of which the last event has two.
WHOLE = Record(
    conversation=0,
    turn=0,
    due_s=1.0,
    num_asked_tokens=5,
    sent_s=1.5,
    end_s=3.5,
    events=[(2.0, 1), (2.25, 1), (3.0, 2)],
    counts=TokenCounts(10, 4, 6),
    outcome=Outcome.OK,
    finish_reason="stop",
)
REJECTED = Record(1, 0, 0.0, 5, outcome=Outcome.REJECTED, error="RESOURCE_EXHAUSTED: full")
FAILED = Record(2, 0, 0.0, 5, end_s=4.0, events=[(0.1, 1)], error="NO END: cut")


def test_every_figure_of_one_answer() -> None:
    figures = figures_of([WHOLE, REJECTED, FAILED], 5, Goodput(ttft=1000.0, tpot=400.0))
    assert figures.ttft_ms.mean == 1000
    assert (figures.tpot_ms.count, figures.tpot_ms.mean) == (1, pytest.approx(1000 / 3))
    assert (figures.itl_ms.count, figures.itl_ms.p50, figures.itl_ms.max) == (2, 750, 750)
    assert figures.e2el_ms.p99 == 2500
    assert figures.duration_s == 4.0
    assert (figures.requests_a_second, figures.output_tokens_a_second) == (0.25, 1.0)
    assert figures.prompt_tokens_a_second == 2.5
    assert figures.goodput == 0.25
    assert (figures.num_ok, figures.num_rejected, figures.num_failed) == (1, 1, 1)
    assert (figures.num_unsent, figures.num_short, figures.num_cached_tokens) == (2, 1, 6)
    assert figures.errors == {"RESOURCE_EXHAUSTED": 1, "NO END": 1}
    assert figures.num_uncounted == 0
    assert figures.tokens_an_event == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    "targets", [Goodput(ttft=999.0), Goodput(tpot=333.0), Goodput(e2el=2499.0)]
)
def test_goodput_counts_none_that_missed_a_target(targets: Goodput) -> None:
    assert figures_of([WHOLE], 1, targets).goodput == 0


def test_answers_that_the_server_did_not_count_have_the_tokens_of_their_events() -> None:
    figures = figures_of([replace(WHOLE, counts=TokenCounts())], 1, Goodput())
    assert (figures.num_uncounted, figures.num_output_tokens, figures.num_prompt_tokens) == (
        1,
        4,
        0,
    )
    assert figures.num_cached_tokens is None


def test_nothing_sent_has_no_figures_and_no_errors() -> None:
    figures = figures_of([], 0, Goodput())
    assert (figures.requests_a_second, figures.ttft_ms.count, figures.goodput) == (0, 0, None)


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_summary_is_in_order(values: list[float]) -> None:
    found = summary_of(values)
    assert found.count == len(values)
    assert min(values) <= found.p50 <= found.p90 <= found.p99 <= found.max == max(values)
    assert min(values) - 1e-6 <= found.mean <= found.max + 1e-6


def test_goodput_reads_as_vllms() -> None:
    assert parse_goodput(["ttft:200", "tpot:50.5"]) == Goodput(200.0, 50.5)
    assert str(parse_goodput(["e2el:9", "ttft:1"])) == "ttft:1 e2el:9"
    assert not parse_goodput([]).is_set


@pytest.mark.parametrize("text", ["ttft", "ttft:x", "ttft:0", "itl:5", "ttft:nan", "ttft:inf"])
def test_wrong_targets_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="wanted each time once: NAME:MILLISECONDS"):
        parse_goodput([text])
    with pytest.raises(RequestError):
        parse_goodput(["ttft:1", "ttft:2"])
