"""Compiling all OMs of a bundle: cached ones are taken, the others run, some at a time.

Owns the order and the folders of runs. A job's folder holds what `atc` wrote and nothing else
afterwards; its log lies beside it until the end.
"""

from __future__ import annotations

import select
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from atc_pipeline.atc.failure import FailedRun, atc_error
from atc_pipeline.atc.find import AtcTool
from atc_pipeline.atc.jobs import CompileJob
from atc_pipeline.atc.options import build_atc_argv
from atc_pipeline.atc.run import RunningAtc

# Of `atc`, beside the OM. Source: hicann/ge base/common/file_constant_utils.
WEIGHT_FOLDER = "weight"
_HEARTBEAT_S = 30.0
_NO_ROOM_BYTES = 1 << 20


class CompileProgress(Protocol):
    """Where a compilation tells how far it is."""

    def __call__(self, stage: str) -> None:
        """A stage begins."""

    def note(self, line: str) -> None:
        """A line within the running stage."""


class CompiledStore(Protocol):
    """Earlier compilations; `cache.py` has the one on disk."""

    def try_fetch(self, job: CompileJob, folder: Path) -> bool:
        """Fill the empty `folder` with what the job made before; False when there is nothing."""

    def store(self, job: CompileJob, folder: Path) -> None:
        """Remember what the job made."""


@dataclass(frozen=True, slots=True)
class CompileSettings:
    """How to run.

    Attributes:
        num_runs: How many at a time.
        timeout_s: Of each run.
        keep_log: Called with a failed job's folder; says where its log can be read when the
            working folder is gone.
        accept: Called with each fresh OM's job and folder; raises when the OM is not what was
            asked for, so that it is not remembered.
    """

    tool: AtcTool
    num_runs: int
    timeout_s: float
    keep_log: Callable[[Path], str]
    accept: Callable[[CompileJob, Path], None]


def compile_jobs(
    jobs: tuple[CompileJob, ...],
    work: Path,
    settings: CompileSettings,
    store: CompiledStore,
    progress: CompileProgress,
) -> int:
    """Make every job's OM in `work/<job name>/`; `work` holds the ONNX graph and its weights.

    Returns:
        How many runs were needed; the others came out of `store`.

    Raises:
        AtcError: A run failed; the others are ended.
    """
    waiting = []
    for job in jobs:
        folder = work / job.name
        folder.mkdir()
        if store.try_fetch(job, folder):
            progress.note(f"{om_name(job)}: compiled before, taken from the cache")
        else:
            waiting.append(job)
    for job in _run_all(waiting, work, settings, progress):
        settings.accept(job, work / job.name)
        store.store(job, work / job.name)
    return len(waiting)


def om_name(job: CompileJob) -> str:
    """The file that `atc` makes in the job's folder."""
    return f"{job.name}.om"


def find_products(job: CompileJob, folder: Path) -> tuple[str, ...]:
    """What a finished run is about, relative to its folder: the OM and its external weights.

    Compilers leave more, such as fusion_result.json and kernel_meta/.
    """
    weights = sorted((folder / WEIGHT_FOLDER).glob("*"))
    return (om_name(job), *(f"{WEIGHT_FOLDER}/{path.name}" for path in weights))


def _run_all(
    waiting: list[CompileJob], work: Path, settings: CompileSettings, progress: CompileProgress
) -> Iterator[CompileJob]:
    """Run the jobs; yields each that has made its OM."""
    queue = list(waiting)
    running: list[tuple[CompileJob, RunningAtc]] = []
    try:
        while queue or running:
            while queue and len(running) < settings.num_runs:
                job = queue.pop(0)
                running.append((job, _start(job, work, settings, progress)))
            ended = _wait([run for _, run in running])
            if not ended:
                _tell_times(running, progress)
            for job, run in [pair for pair in running if pair[1] in ended]:
                _require_success(job, run, work, settings)
                progress.note(f"{om_name(job)}: done after {run.seconds:.0f} s")
                running.remove((job, run))
                run.close()
                yield job
    finally:
        for _, run in running:
            run.close()


def _start(
    job: CompileJob, work: Path, settings: CompileSettings, progress: CompileProgress
) -> RunningAtc:
    folder = work / job.name
    run = RunningAtc(settings.tool, build_atc_argv(job.options), folder, settings.timeout_s)
    shapes = "1 shape" if len(job.buckets) == 1 else f"{len(job.buckets)} shapes"
    progress.note(f"{om_name(job)}: {shapes}, log in {run.log_path}")
    return run


def _wait(runs: list[RunningAtc]) -> list[RunningAtc]:
    """The runs that ended or are out of time; empty when it is time for a word."""
    seconds = min(_HEARTBEAT_S, *(run.seconds_left for run in runs))
    ended, _, _ = select.select(runs, [], [], seconds)
    return [run for run in runs if run in ended or run.seconds_left <= 0]


def _tell_times(running: list[tuple[CompileJob, RunningAtc]], progress: CompileProgress) -> None:
    for job, run in running:
        lines = run.read_tail().splitlines()
        said = f", last line: {lines[-1]}" if lines else ""
        progress.note(f"{om_name(job)}: running for {run.seconds:.0f} s{said}")


def _require_success(
    job: CompileJob, run: RunningAtc, work: Path, settings: CompileSettings
) -> None:
    result = run.finish()
    folder = work / job.name
    if result.exit_code == 0 and not result.timed_out and (folder / om_name(job)).is_file():
        return
    made = tuple(sorted(path.name for path in folder.glob("*.om")))
    is_full = shutil.disk_usage(folder).free < _NO_ROOM_BYTES
    log = settings.keep_log(folder)
    raise atc_error(FailedRun(settings.tool, job, result, settings.timeout_s, log, made, is_full))
