"""Durations are counted by inclusive bounds, and what is above all has its own count."""

from __future__ import annotations

import re
from pathlib import Path

from omruntime import errors
from omruntime.errors import OverloadedError, PromptTooLongError
from omruntime.sequence import FinishReason
from server.control.request_counts import Histogram, RequestCounts
from server.request_tally import RequestTally
from server.text import TextDelta
from tests.server.wire_fakes import end


def test_a_bound_is_inclusive() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.2, 5.0):
        histogram.observe(seconds)
    assert histogram.counts == [2, 1, 1]
    assert histogram.sum_s == 5.35


def test_tokens_count_at_once_and_the_rest_when_the_request_ends() -> None:
    """A page shows what happens now; an answer may take minutes."""
    counts, tally = RequestCounts(), RequestTally(1)
    for delta in (TextDelta(0, "a", (1,)), TextDelta(0, "b", (2, 3)), TextDelta(0, "c", ())):
        arrival = tally.count(delta)
        if arrival is not None:
            counts.arrived(arrival)
    assert (sum(counts.time_to_first_token.counts), sum(counts.inter_token.counts)) == (1, 1)
    assert sum(counts.request.counts) == 0
    tally.count(end(reason=FinishReason.LENGTH))
    counts.finished(tally)
    assert counts.request.sum_s == 1.75
    assert counts.num_finished["length"] == 1


def test_refusals_count_by_error() -> None:
    counts = RequestCounts()
    full = OverloadedError("full", 1.0)
    for error in (full, full, PromptTooLongError("long")):
        counts.refused(error)
    assert counts.num_refused == {"Overloaded": 2, "PromptTooLong": 1}


def test_the_names_of_errors_that_the_page_lists_are_those_of_classes() -> None:
    """Alerts are written from them."""
    page = (Path(__file__).parents[3] / "docs/operations.md").read_text(encoding="utf-8")
    table = page.partition("| `error` | what |")[2].partition("\n\n")[0]
    listed = re.findall(r"`(\w+)`", table)
    assert {"Overloaded", "RateLimited"} <= set(listed)
    assert [name for name in listed if not hasattr(errors, f"{name}Error")] == []
