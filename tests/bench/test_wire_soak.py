"""The soak of the wire, short: what it is for, and that it notices."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from bench.wire_soak import SERVER_OPTIONS, call_in_silence, drop_streams, main
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


@pytest.mark.parametrize("count", ["0", "100", "250"])
def test_streams_that_show_no_growth_or_would_not_be_dropped_are_refused(
    count: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.wire_soak", "--streams", count])
    monkeypatch.setattr("bench.wire_soak.chosen_server", None)
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err
    assert f"--streams is {count}, wanted a multiple of 100, at least 200" in said
