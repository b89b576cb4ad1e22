from __future__ import annotations

from pathlib import Path

import pytest

from omruntime.bundle_files import bundle_path, check_files
from omruntime.errors import BundleError
from omruntime.manifest import (
    FileEntry,
    KVLayout,
    KVSpec,
    Manifest,
    ModelFacts,
    ParitySummary,
    ProgramSpec,
    SamplingDefaults,
)

MODEL = ModelFacts(
    "m", "A", 1, 1, 1, 4, 8, 16, 1, "float32", None, (), "none", SamplingDefaults()
)  # fmt: skip


def manifest_of(*files: FileEntry, program: str = "programs/step.onnx") -> Manifest:
    return Manifest(
        format_version=1,
        graph_contract=1,
        profile="cpu",
        soc="cpu",
        kv_identity="",
        model=MODEL,
        kv=KVSpec(KVLayout.HEAD_MAJOR, 16, "float32", 512),
        programs=(ProgramSpec("step", program, (), (), ()),),
        files=files,
        parity=ParitySummary(0.0, 1.0, 1, 0, 1),
        provenance={},
    )


@pytest.fixture
def program(tmp_path: Path) -> FileEntry:
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "step.onnx").write_bytes(b"1234")
    return FileEntry("programs/step.onnx", 4, "")


def test_complete_files_pass(tmp_path: Path, program: FileEntry) -> None:
    check_files(tmp_path, manifest_of(program))


def test_every_damaged_file_is_named(tmp_path: Path, program: FileEntry) -> None:
    (tmp_path / "programs" / "step.onnx").write_bytes(b"12")
    absent = FileEntry("programs/step.weights", 8, "")
    with pytest.raises(BundleError) as caught:
        check_files(tmp_path, manifest_of(program, absent))
    assert "programs/step.onnx: 2 bytes, the manifest says 4" in str(caught.value)
    assert "programs/step.weights: missing" in str(caught.value)


def test_a_folder_is_no_file(tmp_path: Path, program: FileEntry) -> None:
    with pytest.raises(BundleError, match="missing"):
        check_files(tmp_path, manifest_of(program, FileEntry("programs", 4096, "")))


def test_a_program_must_be_listed(tmp_path: Path, program: FileEntry) -> None:
    with pytest.raises(BundleError, match=r"other\.onnx: a program that the file list lacks"):
        check_files(tmp_path, manifest_of(program, program="programs/other.onnx"))


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../../x", "a/./b", "a//b", "a/", "..\\x", "a\\b"]
)
def test_a_path_stays_inside(path: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="inside of the bundle"):
        bundle_path(tmp_path, path)


def test_a_plain_path(tmp_path: Path) -> None:
    assert bundle_path(tmp_path, "a b/模型#1") == tmp_path / "a b" / "模型#1"
