"""`om-client bench`: from the parsed command line to the reports and the exit code."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from omruntime.errors import CallError, RequestError
from server.terminal.bench.client_health import watching
from server.terminal.bench.dataset import conversations_of
from server.terminal.bench.description import notes_of, shown_of
from server.terminal.bench.goodput import parse_goodput
from server.terminal.bench.metrics import figures_of
from server.terminal.bench.plan import load_shape_of, warm_up
from server.terminal.bench.records import Outcome
from server.terminal.bench.report_html import html_report
from server.terminal.bench.report_text import report_lines
from server.terminal.bench.result import BenchResult, to_plain
from server.terminal.bench.runner import run_load
from server.terminal.bench.targets.opening import open_target
from server.terminal.bench.targets.target import Target
from server.terminal.bench.workload import Conversation
from server.terminal.call_flags import security_of

STANDARD_OUTPUT = "-"


def run_bench(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Run it; 1 when requests were rejected or failed and that is not allowed.

    Raises:
        OmError: A flag is wrong, or the target cannot be reached.
    """
    _require_writable(arguments)
    result = asyncio.run(_bench(arguments, environ))
    _report(arguments, result)
    is_whole = result.figures.num_ok == result.figures.num_planned
    return 0 if is_whole or arguments.allow_failures else 1


async def _bench(arguments: argparse.Namespace, environ: Mapping[str, str]) -> BenchResult:
    load, goodput = load_shape_of(arguments), parse_goodput(arguments.goodput)
    target = await open_target(arguments, security_of(arguments, environ))
    try:
        facts = await target.facts()
        conversations = await conversations_of(arguments, load, target, facts)
        await _warm_up(target, warm_up(arguments, load, facts))
        places = load.places_for(conversations)
        async with watching() as watch:
            records = await run_load(target, conversations, places)
    finally:
        await target.close()
    figures = figures_of(records, sum(len(c.turns) for c in conversations), goodput)
    return BenchResult(
        shown=facts.shown | shown_of(arguments, load, conversations),
        goodput_targets=str(goodput),
        figures=figures,
        health=watch.health([record.late_s for record in records]),
        records=records,
        notes=tuple(notes_of(arguments, figures)),
    )


async def _warm_up(target: Target, conversations: Sequence[Conversation]) -> None:
    """Send requests that nobody counts; one that fails tells of a hundred that would."""
    if not conversations:
        return
    for record in await run_load(target, conversations, 1):
        if record.outcome is not Outcome.OK:
            code, _, text = record.error.partition(": ")
            raise CallError(code, f"{text} (of a warm-up request; nothing was measured)")


def _report(arguments: argparse.Namespace, result: BenchResult) -> None:
    """Files first: whoever reads standard output may leave early, as `head` does."""
    if arguments.html is not None:
        _write(arguments.html, html_report(result))
    plain = None if arguments.json is None else json.dumps(to_plain(result), ensure_ascii=False)
    if plain is not None and arguments.json == STANDARD_OUTPUT:
        print(plain)
        return
    if plain is not None:
        _write(Path(arguments.json), plain + "\n")
    print("\n".join(report_lines(result)))


def _require_writable(arguments: argparse.Namespace) -> None:
    """Say before the load what could not be written behind it."""
    for name in (arguments.json, arguments.html):
        if name is None or str(name) == STANDARD_OUTPUT:
            continue
        if Path(name).is_dir():
            raise RequestError(f"cannot write {name}: it is a folder")
        if not Path(name).parent.is_dir():
            raise RequestError(f"cannot write {name}: there is no folder {Path(name).parent}")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error
