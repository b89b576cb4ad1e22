"""From a draft to a bundle: compile its OMs on this machine and assemble them.

Owns the order of these steps and where they work. The export is done before; publication is the
caller's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from atc_pipeline.assemble import Assembled, AssemblySettings, assemble, check_om
from atc_pipeline.atc.compile import (
    CompiledStore,
    CompileProgress,
    CompileSettings,
    compile_jobs,
)
from atc_pipeline.atc.find import AtcTool
from atc_pipeline.atc.jobs import CompileJob, JobSettings, plan_jobs
from atc_pipeline.atc.limits import memory_need_bytes, num_runs
from atc_pipeline.building_folder import is_locked
from atc_pipeline.cache import DEFAULT_MAX_BYTES, CompileCache, NoCache
from atc_pipeline.draft import (
    GRAPH_PATH,
    GRAPH_WEIGHTS_PATH,
    build_identity,
    draft_program,
    read_draft,
    weight_bytes,
)
from omruntime.errors import AtcError, BundleError, ConfigError
from omruntime.manifest import Manifest

# Source: hicann/ge base/common/util.cc, CheckInputPathValid: the real path of a model must match
# [\u4e00-\u9fa5A-Za-z0-9./_-]+; how a build of it reads the first range depends on the locale.
_WORK_PREFIX = "omserve-atc-"
_ATC_PATH = re.compile(r"[A-Za-z0-9./_-]+")


@dataclass(frozen=True, slots=True)
class AscendBuild:
    """How to compile.

    Attributes:
        num_jobs: Most runs of `atc` at a time.
        timeout_s: Of each run.
        cache_folder: None compiles everything again.
        keeps_intermediates: Leave the working folder in `<output>.atc`, whatever happens.
    """

    tool: AtcTool
    jobs: JobSettings
    num_jobs: int
    timeout_s: float
    cache_folder: Path | None
    is_strict: bool = False
    keeps_onnx: bool = False
    keeps_intermediates: bool = False

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ConfigError: One is out of range.
        """
        if self.num_jobs < 1:
            raise ConfigError(f"--jobs is {self.num_jobs}, wanted at least 1")
        if not 0 < self.timeout_s < float("inf"):
            raise ConfigError(f"--atc-timeout-s is {self.timeout_s}, wanted above 0")


@dataclass(frozen=True, slots=True)
class CompiledBundle:
    """A bundle in its building folder, and how many of its OMs were compiled for it."""

    assembled: Assembled
    num_compiled: int
    num_cached: int


def compile_bundle(
    folder: Path, output: Path, build: AscendBuild, progress: CompileProgress
) -> CompiledBundle:
    """Compile and assemble the draft that lies in `folder`.

    Args:
        folder: Of the running build, on the same file system as `output`.
        output: Beside which logs are kept after a failure, in `<output>.atc`.

    Raises:
        AtcError: A run failed or made something else; its log is kept.
        ConfigError: The buckets or flags do not fit ATC.
        BundleError: The draft or an OM is damaged.
    """
    draft = read_draft(folder)
    jobs = plan_jobs(draft_program(draft), draft.kv, draft.soc, build.jobs)
    need_bytes = memory_need_bytes(build.tool, weight_bytes(draft))
    settings = AssemblySettings(build.tool.is_simulated, build.is_strict, build.keeps_onnx)
    with _work_folder(folder / "programs") as work:
        kept = _KeptFolder(work, output.with_name(f"{output.name}.atc"))
        with kept.everything() if build.keeps_intermediates else contextlib.nullcontext():
            progress(f"compiling {len(jobs)} programs with {build.tool.found}")
            num_compiled = compile_jobs(
                jobs,
                work,
                CompileSettings(
                    tool=build.tool,
                    num_runs=num_runs(build.num_jobs, need_bytes),
                    timeout_s=build.timeout_s,
                    keep_log=kept.keep_log,
                    accept=lambda job, made: _accept(job, made, settings),
                ),
                _open_store(build, draft, progress.note),
                progress,
            )
        progress("checking and hashing programs")
        made = {job: work / job.name for job in jobs}
        assembled = assemble(folder, draft, made, settings)
        return CompiledBundle(assembled, num_compiled, len(jobs) - num_compiled)


def _accept(job: CompileJob, made: Path, settings: AssemblySettings) -> None:
    try:
        check_om(job, made, settings)
    except BundleError as error:
        raise AtcError(f"atc made an unusable program: {error}") from error


def _open_store(build: AscendBuild, draft: Manifest, note: Callable[[str], None]) -> CompiledStore:
    if build.cache_folder is None:
        return NoCache()
    identity = build_identity(draft, build.tool.version, build.tool.is_simulated)
    return CompileCache(build.cache_folder, identity, note, DEFAULT_MAX_BYTES)


@contextlib.contextmanager
def _work_folder(programs: Path) -> Iterator[Path]:
    """A folder with the graph and its weights, whose path `atc` accepts.

    Raises:
        ConfigError: Neither the output's path nor the temporary folder's is one.
    """
    if _ATC_PATH.fullmatch(str(programs.resolve())):
        yield programs
        return
    parent = Path(tempfile.gettempdir()).resolve()
    if not _ATC_PATH.fullmatch(str(parent)):
        raise ConfigError(
            f"atc takes paths of letters, digits and ./_- only, and neither {programs.resolve()} "
            f"nor the temporary folder {parent} is one; choose another --output or TMPDIR"
        )
    _remove_stale(parent)
    with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=parent) as work:
        lock = os.open(work, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in (GRAPH_PATH, GRAPH_WEIGHTS_PATH):
                source = programs.parent / name
                _link_or_copy(source, Path(work) / source.name)
            yield Path(work)
        finally:
            os.close(lock)


def _remove_stale(parent: Path) -> None:
    """Remove what builds that were killed left in the temporary folder."""
    for path in parent.glob(f"{_WORK_PREFIX}*"):
        with contextlib.suppress(OSError):
            if not is_locked(path):
                shutil.rmtree(path)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@dataclass(frozen=True, slots=True)
class _KeptFolder:
    """What stays of the working folder when the build is over."""

    work: Path
    target: Path

    def keep_log(self, job_folder: Path) -> str:
        """Copy the logs of a failed job; says where the main one is now."""
        target = self.target / job_folder.name
        try:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            shutil.copyfile(job_folder / "atc.log", target / "atc.log")
            if (job_folder / "plog").is_dir():
                shutil.copytree(job_folder / "plog", target / "plog")
        except OSError as error:
            # The failure itself must not be hidden by that of keeping its log.
            return f"could not be kept: {error}"
        return str(target / "atc.log")

    @contextlib.contextmanager
    def everything(self) -> Iterator[None]:
        """Copy the whole folder at the end, also after an error, but not when told to stop."""
        try:
            yield
        except Exception:
            self._copy()
            raise
        self._copy()

    def _copy(self) -> None:
        shutil.rmtree(self.target, ignore_errors=True)
        shutil.copytree(self.work, self.target)
