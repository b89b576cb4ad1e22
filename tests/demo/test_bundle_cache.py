from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

from atc_pipeline.build import fill_bundle
from atc_pipeline.building_folder import building_folder
from atc_pipeline.bundle import BuildRecord
from demo.bundle_cache import ensure_bundle
from tests.atc_pipeline.fake_export import fake_export


class FakeTool:
    """Stands in for `export-om build`."""

    def __init__(self, exit_code: int = 0) -> None:
        self.commands: list[Sequence[str]] = []
        self.exit_code = exit_code

    def __call__(self, command: Sequence[str], log: IO[str] | None) -> int:
        self.commands.append(command)
        output = Path(command[command.index("--output") + 1])
        if self.exit_code == 0:
            with building_folder(output) as building:
                fill_bundle(building, BuildRecord("cpu", "t"), fake_export, lambda stage: None)
        return self.exit_code


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


def test_a_current_bundle_is_used_again(tmp_path: Path, checkpoint: Path) -> None:
    tool = FakeTool()
    assert ensure_bundle(checkpoint, tmp_path / "b", ("--name", "x"), run=tool)
    assert not ensure_bundle(checkpoint, tmp_path / "b", ("--name", "x"), run=tool)
    (command,) = tool.commands
    assert command[-2:] == ["--name", "x"]


def test_other_options_weights_or_damage_build_again(tmp_path: Path, checkpoint: Path) -> None:
    tool = FakeTool()
    ensure_bundle(checkpoint, tmp_path / "b", run=tool)
    assert ensure_bundle(checkpoint, tmp_path / "b", ("--name", "x"), run=tool)
    checkpoint.write_bytes(b"other weights")
    assert ensure_bundle(checkpoint, tmp_path / "b", ("--name", "x"), run=tool)
    (tmp_path / "b" / "programs" / "step.weights").write_bytes(b"short")
    assert ensure_bundle(checkpoint, tmp_path / "b", ("--name", "x"), run=tool)


def test_a_changed_file_among_the_options_builds_again(tmp_path: Path, checkpoint: Path) -> None:
    tool, gears = FakeTool(), tmp_path / "gears.json"
    gears.write_text("{}")
    options = ("--buckets", str(gears))
    ensure_bundle(checkpoint, tmp_path / "b", options, run=tool)
    assert not ensure_bundle(checkpoint, tmp_path / "b", options, run=tool)
    gears.write_text("[]")
    assert ensure_bundle(checkpoint, tmp_path / "b", options, run=tool)


def test_a_failed_build_is_not_remembered(tmp_path: Path, checkpoint: Path) -> None:
    ensure_bundle(checkpoint, tmp_path / "b", run=FakeTool())
    with pytest.raises(RuntimeError, match="exit code 3"):
        ensure_bundle(checkpoint, tmp_path / "b", ("--name", "x"), run=FakeTool(exit_code=3))
    assert ensure_bundle(checkpoint, tmp_path / "b", run=FakeTool())
