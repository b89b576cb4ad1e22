"""BL-45: a build for an Ascend chip that is stopped or killed leaves neither half a bundle nor a
running compiler.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atc_pipeline.verify import verify_bundle
from tests.atc_pipeline.fake_ascend import fake_tool

ROOT = Path(__file__).parents[2]


@contextmanager
def build(output: Path, atc: str, num_jobs: int = 2) -> Iterator[subprocess.Popen[str]]:
    cache = output.parent / "cache"
    module = "tests.atc_pipeline.slow_ascend"
    command = [sys.executable, "-m", module, str(output), atc, str(cache), str(num_jobs)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def waiting_build(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A build of which both compilers wait for ever, and handles of these."""
    reports = tmp_path / "started"
    os.mkfifo(reports)
    tool = fake_tool(tmp_path, f"echo $$ >{reports}; mkfifo never; read word <never")
    with build(tmp_path / "out", tool.command[0]) as process:
        # Opened for writing too, so that no end is seen between the two lines.
        with os.fdopen(os.open(reports, os.O_RDWR)) as pipe:
            handles = [os.pidfd_open(int(pipe.readline())) for _ in range(2)]
        yield process, handles


def assert_ended(handles: list[int]) -> None:
    for handle in handles:
        # A bound against hanging, not a measurement.
        assert select.select([handle], [], [], 20)[0]
        os.close(handle)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_signal_ends_the_compilers(tmp_path: Path, signum: signal.Signals) -> None:
    with waiting_build(tmp_path) as (process, handles):
        process.send_signal(signum)
        assert process.wait(timeout=20) == 128 + signum
        assert_ended(handles)
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["atc", "cache", "started"]


def test_a_killed_build_takes_its_compilers_along(tmp_path: Path) -> None:
    with waiting_build(tmp_path) as (process, handles):
        process.kill()
        assert_ended(handles)
    assert not (tmp_path / "out").exists()


def test_a_killed_compiler_is_explained(tmp_path: Path) -> None:
    """BL-11: killed for lack of memory, with a word, exit code 4 and nothing left but the log."""
    tool = fake_tool(tmp_path, "echo compiling; kill -9 $$")
    with build(tmp_path / "out", tool.command[0]) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "atc was killed (exit code 137, SIGKILL), most likely by the kernel" in err
    assert "--jobs 1" in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["atc", "cache", "out.atc"]
    (log,) = (tmp_path / "out.atc").rglob("atc.log")
    assert log.read_text() == "compiling\n"
    assert f"log: {log}" in err


def test_an_older_bundle_survives_a_failed_build(tiny_bundle: Path) -> None:
    tool = fake_tool(tiny_bundle.parent, "exit 255")
    with build(tiny_bundle, tool.command[0]) as process:
        process.communicate(timeout=60)
    assert process.returncode == 4
    verify_bundle(tiny_bundle, progress=lambda stage: None)


@pytest.fixture(scope="module")
def whole_build_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long a build takes here and now, to spread kills over it."""
    folder = tmp_path_factory.mktemp("whole")
    code = (
        "import sys, time; from tests.atc_pipeline import slow_ascend\n"
        "start = time.monotonic(); code = slow_ascend.main()\n"
        "print(time.monotonic() - start); sys.exit(code)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(folder / "out"), "simatc", str(folder / "cache"), "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return float(found.stdout.splitlines()[-1])


@pytest.mark.parametrize("seed", range(4))
def test_a_build_killed_at_a_random_moment(tmp_path: Path, whole_build_s: float, seed: int) -> None:
    """Wherever it dies, no half bundle is there, and the next build succeeds on the same cache."""
    rng = random.Random(seed)
    with build(tmp_path / "out", "simatc") as process:
        try:
            process.wait(timeout=rng.uniform(0, whole_build_s))
        except subprocess.TimeoutExpired:
            process.send_signal(rng.choice([signal.SIGKILL, signal.SIGTERM]))
        process.wait(timeout=20)
    if (tmp_path / "out").exists():
        verify_bundle(tmp_path / "out", progress=lambda stage: None)
        shutil.rmtree(tmp_path / "out")
    with build(tmp_path / "out", "simatc") as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    verify_bundle(tmp_path / "out", progress=lambda stage: None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "out"]
