"""A report of a run that was made up, with a server that writes HTML into its messages."""

from __future__ import annotations

from server.terminal.bench.client_health import ClientHealth
from server.terminal.bench.goodput import Goodput
from server.terminal.bench.metrics import figures_of
from server.terminal.bench.records import Outcome, Record, TokenCounts
from server.terminal.bench.report_html import html_report
from server.terminal.bench.result import BenchResult

EVIL = "</dd><script>alert(1)</script><img src=http://x onerror=y>\"'&"


def record_of(number: int) -> Record:
    """Begins each half second, tokens after 0.2 s and then each 0.1 s."""
    start = number / 2
    events = [(start + 0.2 + i / 10, 1) for i in range(5)]
    return Record(
        number,
        0,
        due_s=start,
        num_asked_tokens=5,
        ready_s=start,
        sent_s=start,
        end_s=start + 0.7,
        events=events,
        counts=TokenCounts(9, 5, 0),
        outcome=Outcome.OK,
    )


def result_of(records: list[Record]) -> BenchResult:
    figures = figures_of(records, len(records), Goodput(ttft=500.0))
    health = ClientHealth(0.5, 0.5, 0.0, 0.0, 0.1, 0.2)
    return BenchResult({"model": EVIL}, "ttft:500", figures, health, records, (EVIL,))


REJECTED = Record(9, 0, 0.0, 5, outcome=Outcome.REJECTED, error=f"HTTP 429: {EVIL}")
PAGE = html_report(result_of([*(record_of(n) for n in range(6)), REJECTED]))
