"""The report of a run for a terminal: figures, then what each of them means."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from server.terminal.bench.metrics import DEFINITIONS, Figures, Summary
from server.terminal.bench.result import BenchResult

_WIDTH = 100
_LABEL = 12


def report_lines(result: BenchResult) -> Iterator[str]:
    """All lines of the report."""
    for name, text in result.shown.items():
        yield from _entry(name, text)
    yield ""
    for name, text in (*count_entries(result.figures), *rate_entries(result)):
        yield from _entry(name, text)
    yield ""
    yield from _latencies(result.figures)
    yield ""
    yield from _client(result)
    for note in result.notes:
        yield from _entry("note", note)
    yield ""
    for name, text in DEFINITIONS.items():
        yield from _entry(name, text)


def count_entries(figures: Figures) -> Iterator[tuple[str, str]]:
    """How many there were of what: words and what they are."""
    text = f"{figures.num_ok} ok, {figures.num_rejected} rejected, {figures.num_failed} failed"
    if figures.num_unsent:
        text += f", {figures.num_unsent} not sent behind those"
    yield "requests", text
    for code, count in figures.errors.items():
        yield "", f"{count} x {figures.examples[code]}"
    yield "duration", f"{figures.duration_s:.2f} s"
    text = f"{figures.num_prompt_tokens} prompt"
    if figures.num_cached_tokens is not None:
        text += f" ({figures.num_cached_tokens} of them cached)"
    text += f", {figures.num_output_tokens} output, {figures.tokens_an_event:.2f} in an event"
    yield "tokens", text


def rate_entries(result: BenchResult) -> Iterator[tuple[str, str]]:
    """How many a second: words and what they are."""
    figures = result.figures
    yield "requests/s", f"{figures.requests_a_second:.2f}"
    output, prompt = figures.output_tokens_a_second, figures.prompt_tokens_a_second
    yield "tokens/s", f"{output:.1f} output, {prompt:.1f} prompt"
    if figures.goodput is not None:
        share = figures.goodput / (figures.num_sent / figures.duration_s)
        text = f"{figures.goodput:.2f} requests/s met {result.goodput_targets} (ms)"
        yield "goodput", f"{text}: {share:.1%} of all sent"


def _latencies(figures: Figures) -> Iterator[str]:
    yield f"{'ms':<{_LABEL}}{'count':>8}" + "".join(
        f"{head:>11}" for head in ("mean", "p50", "p90", "p99", "max")
    )
    for name, of in latencies(figures).items():
        each = "".join(f"{v:>11.2f}" for v in (of.mean, of.p50, of.p90, of.p99, of.max))
        yield f"{name:<{_LABEL}}{of.count:>8}{each if of.count else ' ' * 10 + '-'}"


def latencies(figures: Figures) -> dict[str, Summary]:
    """The quantities of the table, by the names that `DEFINITIONS` explains."""
    return {
        "TTFT": figures.ttft_ms,
        "TPOT": figures.tpot_ms,
        "ITL": figures.itl_ms,
        "E2EL": figures.e2el_ms,
    }


def client_line(result: BenchResult) -> str:
    """What the client needed for itself."""
    health = result.health
    return (
        f"event loop {health.loop_cpu:.0%} and process {health.process_cpu:.0%} of a core; loop "
        f"late by {health.lag_p99_s * 1e3:.1f} ms (p99), {health.lag_max_s * 1e3:.1f} (max); "
        f"requests sent late by {health.late_p99_s * 1e3:.1f} ms (p99), "
        f"{health.late_max_s * 1e3:.1f} (max)"
    )


def _client(result: BenchResult) -> Iterator[str]:
    yield from _entry("client", client_line(result))
    for warning in result.warnings:
        yield from _entry("WARNING", f"the CLIENT limits these figures: {warning}")


def _entry(name: str, text: str) -> Iterator[str]:
    """A word and what it is, indented where it takes several lines."""
    label = f"{name:<{_LABEL}}"
    indent = " " * _LABEL
    yield from textwrap.wrap(
        text, _WIDTH, initial_indent=label, subsequent_indent=indent, break_long_words=False
    ) or [label.rstrip()]
