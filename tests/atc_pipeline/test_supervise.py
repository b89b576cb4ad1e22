"""BL-45: a build that is stopped or killed at any point leaves no half bundle and no child."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]


@contextmanager
def slow_build(output: Path, point: str) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """A build that has reached `point`, and its child."""
    command = [sys.executable, "-m", "tests.atc_pipeline.slow_build", str(output), point]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as build:
        assert build.stderr is not None
        try:
            yield build, psutil.Process(_read_pid(build))
        finally:
            build.kill()


def _read_pid(build: subprocess.Popen[str]) -> int:
    assert build.stderr is not None
    seen = ""
    while " ... " not in seen.partition("waiting pid=")[2]:
        piece = build.stderr.read(1)
        assert piece, f"the build ended early: {seen}"
        seen += piece
    return int(seen.partition("waiting pid=")[2].split()[0])


@pytest.mark.parametrize("point", ["start", "half", "native"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_signal_cleans_up(tmp_path: Path, point: str, signum: signal.Signals) -> None:
    with slow_build(tmp_path / "out", point) as (build, child):
        build.send_signal(signum)
        # A bound against hanging, not a measurement.
        assert build.wait(timeout=20) == 128 + signum
        assert not child.is_running()
        assert build.stderr is not None
        assert "Traceback" not in build.stderr.read()
    assert list(tmp_path.iterdir()) == []


def test_a_stop_signal_keeps_the_older_bundle(tiny_bundle: Path) -> None:
    with slow_build(tiny_bundle, "half") as (build, _):
        build.terminate()
        build.wait(timeout=20)
    assert [p.name for p in tiny_bundle.parent.iterdir()] == ["tiny"]
    assert (tiny_bundle / "bundle.json").exists()


def test_a_killed_child_is_explained(tmp_path: Path) -> None:
    """BL-11: killed for lack of memory, with a word and exit code 3."""
    with slow_build(tmp_path / "out", "half") as (build, child):
        child.kill()
        _, err = build.communicate(timeout=20)
    assert build.returncode == 3
    assert "SIGKILL" in err
    assert "memory" in err
    assert list(tmp_path.iterdir()) == []


def test_a_child_ended_by_somebody_else_is_explained(tmp_path: Path) -> None:
    with slow_build(tmp_path / "out", "native") as (build, child):
        child.terminate()
        _, err = build.communicate(timeout=20)
    assert build.returncode == 3
    assert "the build was ended by SIGTERM" in err
    assert list(tmp_path.iterdir()) == []


def test_a_killed_parent_takes_its_child_along(tmp_path: Path, build_tiny: object) -> None:
    assert callable(build_tiny)
    with slow_build(tmp_path / "out", "half") as (build, child):
        build.kill()
        build.wait(timeout=20)
        child.wait(timeout=20)
    assert not (tmp_path / "out").exists()
    assert len(list(tmp_path.iterdir())) == 1
    build_tiny(tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
