"""The report of a run as one page: no scripts, nothing from elsewhere, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from server.terminal.bench.curves import cumulative, in_flight_over_time, tokens_over_time
from server.terminal.bench.metrics import DEFINITIONS, Figures
from server.terminal.bench.records import Outcome
from server.terminal.bench.report_text import client_line, count_entries, latencies, rate_entries
from server.terminal.bench.result import BenchResult
from server.terminal.bench.svg_chart import chart

# Nothing may be loaded or run, whatever a server's messages hold.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --page: #fff; --faint: #d0d7de;
  --muted: #57606a; --line0: #0969da; --line1: #bc4c00; --bad: #b31d28 }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --page: #0d1117; --faint: #30363d;
  --muted: #9198a1; --line0: #58a6ff; --line1: #f0883e; --bad: #ff7b72 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 75rem; margin: 1.5rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem }
dt { color: var(--muted) } dd { margin: 0; overflow-wrap: anywhere }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid var(--faint) }
th:first-child { text-align: left } .wide { overflow-x: auto }
.warning { color: var(--bad); font-weight: 600 }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr));
  gap: 1.5rem }
figure { margin: 0 } figcaption { font-weight: 600 } svg { width: 100%; height: auto }
svg text { fill: var(--muted); font-size: 11px } .middle { text-anchor: middle }
.end { text-anchor: end } .grid { stroke: var(--faint); fill: none }
polyline { fill: none; stroke-width: 1.8; stroke-linejoin: round }
.line0 { stroke: var(--line0) } .line1 { stroke: var(--line1); stroke-dasharray: 6 3 }
.key0 { color: var(--line0) } .key1 { color: var(--line1); margin-left: 1rem }
"""


def html_report(result: BenchResult) -> str:
    """The whole page."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>om-client bench</title><style>{_STYLE}</style></head><body>",
        "<h1>om-client bench</h1>",
        _list(result.shown.items()),
        *_warnings(result),
        "<h2>Figures</h2>",
        _list([*count_entries(result.figures), *rate_entries(result)]),
        _table(result.figures),
        f'<h2>Curves</h2><div class="curves">{"".join(_curves(result))}</div>',
        "<h2>What the words mean</h2>",
        _list(DEFINITIONS.items()),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _warnings(result: BenchResult) -> Iterator[str]:
    for warning in result.warnings:
        yield f'<p class="warning">The client limits these figures: {escape(warning)}</p>'
    yield _list([("client", client_line(result)), *(("note", note) for note in result.notes)])


def _list(entries: Iterable[tuple[str, str]]) -> str:
    items = (f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in entries)
    return f"<dl>{''.join(items)}</dl>"


def _table(figures: Figures) -> str:
    heads = "".join(f"<th>{head}</th>" for head in ("count", "mean", "p50", "p90", "p99", "max"))
    rows = []
    for name, of in latencies(figures).items():
        values = (of.mean, of.p50, of.p90, of.p99, of.max)
        cells = "".join(f"<td>{f'{value:.2f}' if of.count else '-'}</td>" for value in values)
        rows.append(f"<tr><th>{name}</th><td>{of.count}</td>{cells}</tr>")
    table = f"<table><tr><th>ms</th>{heads}</tr>{''.join(rows)}</table>"
    return f'<div class="wide">{table}</div>'


def _curves(result: BenchResult) -> Iterator[str]:
    whole = [record for record in result.records if record.outcome is Outcome.OK]
    ttfts = [record.ttft_s * 1e3 for record in whole if record.ttft_s is not None]
    gaps = [gap * 1e3 for record in whole for gap in record.gaps_s]
    tpots = [record.tpot_s * 1e3 for record in whole if record.tpot_s is not None]
    share = "share of all"
    yield chart("Time to first token", "ms", share, {"TTFT": cumulative(ttfts)})
    between = {"ITL": cumulative(gaps), "TPOT": cumulative(tpots)}
    yield chart("Between tokens", "ms", share, between)
    tokens = tokens_over_time(result.records, result.figures.duration_s)
    yield chart("Output tokens a second", "s", "tokens/s", {"tokens/s": tokens})
    in_flight = in_flight_over_time(result.records)
    yield chart("Requests in flight", "s", "requests", {"requests": in_flight})
