"""From an emitted folder with compiled OMs to a bundle; needs no checkpoint and no torch.

Owns what is checked of a folder that was on another machine. The folder is only read.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from atc_pipeline.assemble import Assembled, AssemblySettings, assemble, check_om
from atc_pipeline.atc.compile import find_products, om_name
from atc_pipeline.atc.jobs import CompileJob
from atc_pipeline.checksums import SUMS_NAME, find_changes
from atc_pipeline.draft import DRAFT_NAME
from atc_pipeline.emit import EMIT_NAME, SCRIPT_NAME, Emitted, read_emitted
from omruntime.bundle_files import bundle_path, find_file_problems
from omruntime.errors import BundleError


def require_compiled(folder: Path, progress: Callable[[str], None]) -> Emitted:
    """Check that an emitted folder is whole and every OM of it is there.

    Raises:
        BundleError: The message lists all that is wrong.
    """
    progress("checking the emitted folder")
    emitted = read_emitted(folder)
    problems = find_file_problems(folder, emitted.draft)
    emitted_names = tuple(entry.path for entry in emitted.draft.files)
    problems += find_changes(folder, (DRAFT_NAME, EMIT_NAME, *emitted_names))
    for job in emitted.jobs:
        problems += _program_problems(folder, job)
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise BundleError(f"{folder} cannot become a bundle:{lines}")
    return emitted


def _program_problems(folder: Path, job: CompileJob) -> list[str]:
    """What is wrong with one compiled program, made from this folder and nothing else."""
    programs = Path("programs") / job.name
    again = f"run sh {SCRIPT_NAME} {job.name}"
    if not (folder / programs / om_name(job)).is_file():
        return [f"{programs / om_name(job)}: missing; {again}"]
    products = find_products(job, folder / programs)
    changes = find_changes(folder / programs, (f"../../{SUMS_NAME}", *products))
    return [f"{programs}/{change}; {again}" for change in changes]


def bundle_from_compiled(
    source: Path, emitted: Emitted, folder: Path, settings: AssemblySettings
) -> Assembled:
    """Assemble a bundle in the empty `folder` from the emitted one at `source`.

    Raises:
        BundleError: An OM is not what was asked for.
    """
    for job in emitted.jobs:
        # Before gigabytes are copied.
        check_om(job, source / "programs" / job.name, settings)
    for entry in emitted.draft.files:
        _copy(bundle_path(source, entry.path), folder / entry.path)
    _copy(source / DRAFT_NAME, folder / DRAFT_NAME)
    made = {}
    for job in emitted.jobs:
        made[job] = folder / "programs" / job.name
        for name in find_products(job, source / "programs" / job.name):
            _copy(source / "programs" / job.name / name, made[job] / name)
    return assemble(folder, emitted.draft, made, settings)


def compiled_bytes(source: Path, emitted: Emitted) -> int:
    """What the bundle will take, and the graph while it is put together."""
    programs = [source / "programs" / job.name for job in emitted.jobs]
    products = [
        folder / name
        for job, folder in zip(emitted.jobs, programs, strict=True)
        for name in find_products(job, folder)
    ]
    return sum(entry.size_bytes for entry in emitted.draft.files) + sum(
        path.stat().st_size for path in products
    )


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
