from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from atc_pipeline.build import BuildNeeds, Exporter, fill_bundle, require_room
from atc_pipeline.building_folder import building_folder
from atc_pipeline.bundle import BuildRecord
from export.result import ExportResult
from omruntime.errors import ConfigError, ExportError
from tests.atc_pipeline.fake_export import fake_export

Progress = Callable[[str], None]


def build(output: Path, export: Exporter) -> list[str]:
    stages: list[str] = []
    with building_folder(output) as building:
        fill_bundle(building, BuildRecord("cpu", "tiny"), export, stages.append)
    return stages


def failing_with(error: Exception) -> Exporter:
    def export(folder: Path, progress: Progress) -> ExportResult:
        fake_export(folder, progress)
        raise error

    return export


def test_stages_are_told_in_order(tmp_path: Path) -> None:
    stages = build(tmp_path / "out", fake_export)
    assert stages[-2:] == ["hashing files", "publishing"]
    assert len(stages) == 6


def test_temporary_files_lie_beside_the_output(tmp_path: Path) -> None:
    """BL-11: a small TMPDIR does not matter when the output has room."""
    scratch: list[Path] = []

    def export(folder: Path, progress: Progress) -> ExportResult:
        with tempfile.NamedTemporaryFile(delete=False) as file:
            scratch.append(Path(file.name))
        return fake_export(folder, progress)

    before = tempfile.gettempdir()
    build(tmp_path / "out", export)
    assert scratch[0].is_relative_to(tmp_path)
    assert tempfile.gettempdir() == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named(tmp_path: Path, code: int) -> None:
    error = OSError(code, os.strerror(code), "programs/step.weights")
    with pytest.raises(ExportError, match=r"no disk space left.*step\.weights"):
        build(tmp_path / "out", failing_with(error))
    assert list(tmp_path.iterdir()) == []


def test_a_limit_of_file_sizes_is_named(tmp_path: Path) -> None:
    """As `ulimit -f` sets it; Python ignores the signal that comes with it."""
    error = OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    with pytest.raises(ExportError, match=r"pass a limit of file sizes.*ulimit -f"):
        build(tmp_path / "out", failing_with(error))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_nothing(small_disk: Path) -> None:
    """BL-11: ENOSPC half way, then a clean next run."""

    def export(folder: Path, progress: Progress) -> ExportResult:
        (folder / "big").write_bytes(bytes(2 << 20))
        return fake_export(folder, progress)

    with pytest.raises(ExportError, match="no disk space left"):
        build(small_disk / "out", export)
    assert list(small_disk.iterdir()) == []
    build(small_disk / "out", fake_export)
    assert [p.name for p in small_disk.iterdir()] == ["out"]


class ForeignError(Exception):
    """As ONNX Runtime's, which is no RuntimeError."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        ForeignError(
            "BFCArena: Failed to allocate memory for requested buffer of size 25599999744"
        ),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_memory_that_runs_out_is_named(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(ExportError, match="memory ran out"):
        build(tmp_path / "out", failing_with(error))


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(13, "no"),
        ForeignError("shape mismatch"),
        ForeignError("no kernel for the output of block_alloc"),
        ConfigError("cannot allocate memory, it says"),
    ],
)
def test_other_errors_keep_their_kind(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)):
        build(tmp_path / "out", failing_with(error))


def test_the_estimate_is_checked_before_the_start(tmp_path: Path) -> None:
    """BL-11: refused with need and have."""
    require_room(BuildNeeds.of_parameters(None), tmp_path)
    require_room(BuildNeeds.of_parameters(1), tmp_path)
    with pytest.raises(ExportError, match="too little memory"):
        require_room(BuildNeeds.of_parameters(10**13), tmp_path)
    with pytest.raises(ExportError, match="too little disk space"):
        require_room(BuildNeeds(memory_bytes=0, disk_bytes=1 << 60), tmp_path)
