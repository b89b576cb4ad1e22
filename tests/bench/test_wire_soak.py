"""The soak of the wire, short: what it is for, and that it notices."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.wire_soak import SERVER_OPTIONS, call_in_silence, drop_streams
from tests.toy_server import slow_steps, toy_server


def test_dropped_streams_and_sessions_leave_nothing(tmp_path: Path) -> None:
    with toy_server(tmp_path, SERVER_OPTIONS) as child:
        faults = asyncio.run(drop_streams(child.target, child.pid, 400, seed=3))
        assert "Traceback" not in child.log.read_text()
    # Memory needs more streams to show a slope.
    assert [fault for fault in faults if "memory" not in fault] == []


def test_a_silence_that_was_none_is_noticed(tmp_path: Path) -> None:
    with toy_server(tmp_path, slow_steps(0.2, 1)) as child:
        assert asyncio.run(call_in_silence(child.target, silence_s=0.2)) == []
        (fault,) = asyncio.run(call_in_silence(child.target, silence_s=60.0))
    assert "wanted a pause of 60 s" in fault
