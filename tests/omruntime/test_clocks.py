"""BL-48: durations and deadlines are measured by the monotonic clock alone.

A wall clock that is set while requests run must not end, delay or date them; so what measures
never reads it. That a jump of the monotonic clock does no harm is proved with injected faults.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What shows the time of day: `created` of the OpenAI API, templates that ask for the date, and the
# dates of spans, whose lengths are measured.
MAY_READ_WALL_CLOCK = {"server/chat_template.py", "server/http/gateway.py", "server/traces.py"}
WALL_CLOCK = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"}
WALL_CLOCK |= {"date.today", "time.localtime", "time.gmtime", "time.ctime", "time.strftime"}


def readings(source: str) -> Iterator[str]:
    """The names by which a source reads the wall clock."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            name = f"{node.value.attr}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (w for n in node.names if (w := f"time.{n.name}") in WALL_CLOCK)
            continue
        else:
            continue
        if name in WALL_CLOCK:
            yield name


def test_the_search_finds_every_form() -> None:
    source = "import time\nfrom time import time_ns\ntime.time()\ndatetime.datetime.now()\n"
    assert sorted(readings(source)) == ["datetime.now", "time.time", "time.time_ns"]
    assert not list(readings("time.monotonic()"))


def test_nothing_that_measures_reads_the_wall_clock() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for package in ("omruntime", "server")
        for path in (ROOT / package).rglob("*.py")
        if any(readings(path.read_text(encoding="utf-8")))
    }
    assert found == MAY_READ_WALL_CLOCK
