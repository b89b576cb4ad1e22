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
from atc_pipeline.bundle import hash_file
from atc_pipeline.draft import DRAFT_NAME
from atc_pipeline.emit import SCRIPT_NAME, Emitted, read_emitted
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
    for entry in emitted.draft.files:
        path = bundle_path(folder, entry.path)
        if path.is_file() and hash_file(path) != entry.sha256:
            problems.append(f"{entry.path}: was changed since it was emitted")
    missing = [job for job in emitted.jobs if not _om_path(folder, job).is_file()]
    problems += [
        f"{_om_path(folder, job).relative_to(folder)}: missing; run sh {SCRIPT_NAME} {job.name}"
        for job in missing
    ]
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise BundleError(f"{folder} cannot become a bundle:{lines}")
    return emitted


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


def _om_path(folder: Path, job: CompileJob) -> Path:
    return folder / "programs" / job.name / om_name(job)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
