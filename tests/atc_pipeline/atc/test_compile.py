from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from atc_pipeline.atc.compile import CompileSettings, compile_jobs, find_products
from atc_pipeline.atc.find import AtcTool
from atc_pipeline.atc.jobs import CompileJob, Layout
from omruntime.errors import AtcError, BundleError
from tests.atc_pipeline.fake_ascend import Notes, fake_jobs, fake_tool

MAKE = "echo om >$output.om; mkdir -p weight kernel_meta; echo w >weight/weight_$output"


class MemoryStore:
    """Remembers OMs; knows some from the start."""

    def __init__(self, *known: str) -> None:
        self.known = set(known)
        self.stored: list[str] = []

    def try_fetch(self, job: CompileJob, folder: Path) -> bool:
        if job.name in self.known:
            (folder / f"{job.name}.om").write_text("cached")
        return job.name in self.known

    def store(self, job: CompileJob, folder: Path) -> None:
        assert (folder / f"{job.name}.om").exists()
        self.stored.append(job.name)


def accept(job: CompileJob, folder: Path) -> None:
    pass


def settings(tool: AtcTool, num_runs: int = 1, timeout_s: float = 30.0) -> CompileSettings:
    return CompileSettings(tool, num_runs, timeout_s, lambda folder: f"{folder}/kept", accept)


def test_every_job_runs_in_its_folder(tmp_path: Path) -> None:
    work, store, notes = tmp_path / "work", MemoryStore(), Notes()
    work.mkdir()
    jobs = fake_jobs()
    tool = fake_tool(tmp_path, f"test -d ../$output && {MAKE}")
    assert compile_jobs(jobs, work, settings(tool), store, notes) == 2
    assert store.stored == ["prefill", "decode"]
    assert find_products(jobs[1], work / "decode") == ("decode.om", "weight/weight_decode")
    assert any(line.startswith("decode.om: 2 shapes, log in ") for line in notes.lines)
    assert any(line.startswith("decode.om: done after") for line in notes.lines)


def test_what_the_store_has_is_not_compiled(tmp_path: Path) -> None:
    store, notes = MemoryStore("prefill"), Notes()
    (tmp_path / "work").mkdir()
    tool = fake_tool(tmp_path, f"[ $output = decode ] && {MAKE}")
    assert compile_jobs(fake_jobs(), tmp_path / "work", settings(tool), store, notes) == 1
    assert store.stored == ["decode"]
    assert notes.lines[0] == "prefill.om: compiled before, taken from the cache"


def test_as_many_runs_at_a_time_as_allowed(tmp_path: Path) -> None:
    """Each run waits for the other, so this ends only when both run at once."""
    (tmp_path / "work").mkdir()
    for name in ("prefill", "decode"):
        os.mkfifo(tmp_path / name)
    meet = (
        "other=decode; [ $output = decode ] && other=prefill\n"
        f"echo here >{tmp_path}/$other & read word <{tmp_path}/$output; wait\n"
    )
    tool = fake_tool(tmp_path, meet + MAKE)
    assert compile_jobs(fake_jobs(), tmp_path / "work", settings(tool, 2), MemoryStore(), Notes())


def test_never_more_runs_than_allowed(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    alone = f"mkdir {tmp_path}/busy || exit 1\n{MAKE}\nrmdir {tmp_path}/busy"
    jobs = fake_jobs(Layout.STATIC)
    tool = fake_tool(tmp_path, alone)
    assert compile_jobs(jobs, tmp_path / "work", settings(tool), MemoryStore(), Notes()) == 5


def test_a_failure_ends_the_other_runs(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    for name in ("started", "alive"):
        os.mkfifo(tmp_path / name)
    # Reads as ended when the last process that holds the other side is gone.
    alive = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    body = (
        f"if [ $output = prefill ]; then exec 9>{tmp_path}/alive; echo >{tmp_path}/started; "
        f"sleep 60; else read word <{tmp_path}/started; echo E10035: one gear; exit 255; fi"
    )
    store = MemoryStore()
    with pytest.raises(AtcError, match=r"decode\.om: atc failed with exit code 255") as caught:
        compile_jobs(
            fake_jobs(), tmp_path / "work", settings(fake_tool(tmp_path, body), 2), store, Notes()
        )
    assert f"log: {tmp_path}/work/decode/kept" in str(caught.value)
    assert select.select([alive], [], [], 20)[0]
    assert os.read(alive, 1) == b""
    os.close(alive)
    assert store.stored == []


def test_the_time_limit_is_each_runs_own(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    tool = fake_tool(tmp_path, "sleep 60")
    with pytest.raises(AtcError, match="time limit of 0 s"):
        compile_jobs(
            fake_jobs(), tmp_path / "work", settings(tool, timeout_s=0.01), MemoryStore(), Notes()
        )


def test_success_without_an_om_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    tool = fake_tool(tmp_path, "touch ${output}_linux_x86_64.om")
    with pytest.raises(AtcError, match=r"no OM of this name.*_linux_x86_64\.om"):
        compile_jobs(fake_jobs(), tmp_path / "work", settings(tool), MemoryStore(), Notes())


def test_an_om_that_is_not_accepted_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    store = MemoryStore()

    def refuse(job: CompileJob, folder: Path) -> None:
        raise BundleError(f"{job.name} has other gears")

    tool = fake_tool(tmp_path, MAKE)
    strict = CompileSettings(tool, 1, 30, str, refuse)
    with pytest.raises(BundleError, match="prefill has other gears"):
        compile_jobs(fake_jobs(), tmp_path / "work", strict, store, Notes())
    assert store.stored == []
