"""One build: estimates, export into a building folder, manifest, publication.

Owns the order of these steps. The exporter is passed in, so nothing here imports torch.
"""

from __future__ import annotations

import errno
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from atc_pipeline.building_folder import BuildingFolder
from atc_pipeline.bundle import BuildRecord, ExportedGraph, write_manifest
from atc_pipeline.draft import DRAFT_NAME
from atc_pipeline.resources import available_memory_bytes, mib, require_disk, require_memory
from omruntime.errors import ExportError, OmError
from omruntime.manifest import Manifest

Progress = Callable[[str], None]
Exporter = Callable[[Path, Progress], ExportedGraph]
# Looks at an export in its folder; returns warnings, raises when the compiler would refuse it.
Lint = Callable[[Path, ExportedGraph], tuple[str, ...]]

_FLOAT32_BYTES = 4
_FLOAT16_BYTES = 2
# The OMs' constants once more for another layout, and the compile cache's copy of both.
_OM_COPIES = 4
_SCRATCH = ".scratch"
_FAILED_ALLOCATION = re.compile(r"allocate memory|bad_alloc")


@dataclass(frozen=True, slots=True)
class BuildNeeds:
    """What a build is expected to take; a need of 0 is unknown and not checked."""

    memory_bytes: int
    disk_bytes: int

    @staticmethod
    def of_parameters(num_parameters: int | None) -> BuildNeeds:
        """The estimate for a checkpoint of so many weights.

        The checkpoint, the traced graph, its serialised form and ONNX Runtime's copy are in
        memory at once, on top of the libraries; one float32 copy goes to disk, twice while
        the graph is written.
        """
        if num_parameters is None:
            return BuildNeeds(0, 0)
        weight_bytes = num_parameters * _FLOAT32_BYTES
        return BuildNeeds(4 * weight_bytes + (1 << 30), 2 * weight_bytes + (64 << 20))

    @staticmethod
    def of_ascend(num_parameters: int | None) -> BuildNeeds:
        """The same for a target that ATC compiles for: a float16 graph and its OMs besides."""
        needs = BuildNeeds.of_parameters(num_parameters)
        om_bytes = _OM_COPIES * _FLOAT16_BYTES * (num_parameters or 0)
        return BuildNeeds(needs.memory_bytes, needs.disk_bytes + om_bytes)


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One build, apart from how the checkpoint is exported."""

    output: Path
    record: BuildRecord
    needs: BuildNeeds


def require_room(needs: BuildNeeds, folder: Path) -> None:
    """Compare the estimate with this machine before anything is loaded.

    Raises:
        ExportError: Memory or disk space will not suffice.
    """
    require_memory(needs.memory_bytes, available_memory_bytes())
    require_disk(folder, needs.disk_bytes)


def fill_bundle(
    building: BuildingFolder, record: BuildRecord, export: Exporter, progress: Progress
) -> tuple[Manifest, tuple[str, ...]]:
    """Export into the building folder and put the finished bundle under its name.

    Returns:
        The manifest and the export's warnings.

    Raises:
        ExportError: The export failed, or memory or disk space ran out; nothing is published.
    """
    with named_shortages(building.path):
        with _scratch_folder(building.path):
            graph = export(building.path, progress)
        progress("hashing files")
        manifest = write_manifest(building.path, graph, record)
        progress("publishing")
        building.publish()
    return manifest, graph.warnings


def fill_draft(
    folder: Path, record: BuildRecord, export: Exporter, lint: Lint, progress: Progress
) -> None:
    """Export into `folder` and write the draft that the compilation starts from.

    Raises:
        ExportError: The export or the lint failed, or memory or disk space ran out.
    """
    with named_shortages(folder):
        with _scratch_folder(folder):
            graph = export(folder, progress)
        progress("checking the graph for ATC")
        warnings = lint(folder, graph)
        progress("hashing files")
        write_manifest(folder, graph, record, name=DRAFT_NAME, warnings=warnings)


@contextmanager
def _scratch_folder(parent: Path) -> Iterator[None]:
    """Let temporary files lie where there is room for the bundle, not in a small /tmp."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=parent) as scratch:
        tempfile.tempdir = scratch
        try:
            yield
        finally:
            tempfile.tempdir = before


@contextmanager
def named_shortages(folder: Path) -> Iterator[None]:
    """Say "memory", "disk space" or "file sizes" when that is why a library failed."""
    try:
        yield
    except MemoryError as error:
        raise ExportError(_no_memory(error)) from error
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ExportError(
                f"a file of the build in {folder} would pass a limit of file sizes: "
                f"{mib(_written_bytes(folder))} were written in all; raise it (ulimit -f), or "
                f"choose another --output if it is the file system's"
            ) from error
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = error.filename or folder
        raise ExportError(
            f"no disk space left while writing {where}: {error.strerror}; "
            f"{mib(_written_bytes(folder))} were written; free some or choose another --output"
        ) from error
    except Exception as error:
        # A failed allocation is a RuntimeError in torch, and in ONNX Runtime a class of its own.
        if isinstance(error, OmError) or not _FAILED_ALLOCATION.search(str(error)):
            raise
        raise ExportError(_no_memory(error)) from error


def _no_memory(error: Exception) -> str:
    return (
        f"memory ran out during the build ({error}); this process can still have "
        f"{mib(available_memory_bytes())}; raise the limit or build on a larger machine"
    )


def _written_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
