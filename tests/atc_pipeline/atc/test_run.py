from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atc_pipeline.atc import guard
from atc_pipeline.atc.find import AtcTool
from atc_pipeline.atc.run import RunningAtc
from tests.atc_pipeline.fake_ascend import fake_tool

GUARD = Path(guard.__file__)


@contextmanager
def running(tool: AtcTool, folder: Path, timeout_s: float = 30) -> Iterator[RunningAtc]:
    run = RunningAtc(tool, ("--output=x",), folder, timeout_s)
    try:
        yield run
    finally:
        run.close()


def watch_pids(path: Path, count: int) -> list[int]:
    """Handles of processes whose ids a fake compiler writes into a named pipe, in one line."""
    pids = path.read_text().split()
    assert len(pids) == count
    return [os.pidfd_open(int(pid)) for pid in pids]


def assert_ended(handle: int) -> None:
    # A bound against hanging, not a measurement.
    assert select.select([handle], [], [], 20)[0]
    os.close(handle)


def test_output_code_and_folder(tmp_path: Path) -> None:
    tool = fake_tool(tmp_path, "echo out; echo err >&2; pwd; exit 7")
    with running(tool, tmp_path) as run:
        result = run.wait()
    assert (result.exit_code, result.timed_out) == (7, False)
    assert result.output_tail == f"out\nerr\n{tmp_path}\n"
    assert run.log_path.read_text() == result.output_tail


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV])
def test_a_signal_is_128_and_its_number(signum: int, tmp_path: Path) -> None:
    with running(fake_tool(tmp_path, f"kill -{signum} $$"), tmp_path) as run:
        assert run.wait().exit_code == 128 + signum


def test_detailed_logs_and_no_python_path_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/opt/cann/python")
    body = 'echo "$ASCEND_PROCESS_LOG_PATH"; echo "$PYTHONPATH"'
    tool = fake_tool(tmp_path, body)
    with running(tool, tmp_path) as run:
        assert run.wait().output_tail.split() == [str(tmp_path / "plog"), "/opt/cann/python"]
    simulated = AtcTool(tool.command, "1", True, "", python_path="/ours")
    with running(simulated, tmp_path) as run:
        assert run.wait().output_tail.split()[1] == "/opt/cann/python:/ours"


def test_the_time_limit_ends_the_whole_group(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pids")
    body = "sleep 60 & echo $! >pids; echo compiling; wait"
    with running(fake_tool(tmp_path, body), tmp_path, timeout_s=1.0) as run:
        (sleeper,) = watch_pids(tmp_path / "pids", 1)
        result = run.wait()
    assert result.timed_out
    assert result.output_tail == "compiling\n"
    assert_ended(sleeper)


def test_what_a_finished_run_left_running_is_ended(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pids")
    with running(fake_tool(tmp_path, "sleep 60 & echo $! >pids"), tmp_path) as run:
        (sleeper,) = watch_pids(tmp_path / "pids", 1)
        assert run.wait().exit_code == 0
    assert_ended(sleeper)


def test_closing_ends_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pids")
    with running(fake_tool(tmp_path, "echo $$ >pids; sleep 60"), tmp_path):
        (script,) = watch_pids(tmp_path / "pids", 1)
    assert_ended(script)


def test_nothing_outlives_a_killed_parent(tmp_path: Path) -> None:
    """BL-45: the kernel closes the guard's input, however the parent ends."""
    os.mkfifo(tmp_path / "pids")
    tool = fake_tool(tmp_path, "sleep 60 & echo $! $$ >pids; wait")
    code = (
        "import sys; from pathlib import Path\n"
        "from atc_pipeline.atc.find import AtcTool; from atc_pipeline.atc.run import RunningAtc\n"
        "run = RunningAtc(AtcTool((sys.argv[1],), '', False, ''), (), Path(sys.argv[2]), 99)\n"
        "run.wait()\n"
    )
    command = [sys.executable, "-c", code, tool.command[0], str(tmp_path)]
    with subprocess.Popen(command, cwd=GUARD.parents[2]) as parent:
        children = watch_pids(tmp_path / "pids", 2)
        parent.kill()
    for child in children:
        assert_ended(child)


def test_a_program_that_cannot_be_run(tmp_path: Path) -> None:
    tool = AtcTool((str(tmp_path / "absent"),), "", False, "")
    with running(tool, tmp_path) as run:
        result = run.wait()
    assert result.exit_code == 126
    assert "cannot run" in result.output_tail


def test_a_long_log_is_cut_for_messages(tmp_path: Path) -> None:
    tool = fake_tool(tmp_path, "head -c 200000 /dev/zero | tr '\\0' x; echo; echo end")
    with running(tool, tmp_path) as run:
        tail = run.wait().output_tail
    assert tail.endswith("x\nend\n")
    assert len(tail) == 64 << 10
