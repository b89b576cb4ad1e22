"""Bundles made of the fake export, and a machine without CANN."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atc_pipeline.build import fill_bundle
from atc_pipeline.building_folder import building_folder
from atc_pipeline.bundle import BuildRecord
from tests.atc_pipeline.fake_export import fake_export


@pytest.fixture
def build_tiny() -> Callable[[Path], None]:
    """Builds the tiny bundle at a path, in this process."""

    def build(output: Path) -> None:
        with building_folder(output) as building:
            record = BuildRecord("cpu", "tiny.gguf")
            fill_bundle(building, record, fake_export, progress=lambda stage: None)

    return build


@pytest.fixture
def tiny_bundle(tmp_path: Path, build_tiny: Callable[[Path], None]) -> Path:
    output = tmp_path / "tiny"
    build_tiny(output)
    return output


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine on which no `atc` can be found."""
    for name in ("OMSERVE_ATC", "ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    if Path("/usr/local/Ascend").exists():
        pytest.skip("CANN is installed here")
