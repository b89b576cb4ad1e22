from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from atc_pipeline.building_folder import building_folder, exchange_by_renames
from omruntime.errors import ConfigError
from omruntime.manifest import Manifest

BuildTiny = Callable[[Path], None]


def test_a_published_folder_is_all_that_remains(tmp_path: Path) -> None:
    with building_folder(tmp_path / "out") as building:
        (building.path / "file").write_text("x")
        assert not (tmp_path / "out").exists()
        building.publish()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "file").read_text() == "x"


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), building_folder(tmp_path / "out") as building:
        (building.path / "absent" / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_build_keeps_the_older_bundle(tiny_bundle: Path) -> None:
    before = Manifest.read(tiny_bundle)
    with pytest.raises(RuntimeError), building_folder(tiny_bundle):
        raise RuntimeError
    assert Manifest.read(tiny_bundle) == before


def test_replacing_keeps_open_files(tiny_bundle: Path, build_tiny: BuildTiny) -> None:
    """BL-49: a server that runs from the bundle keeps its files when it is rebuilt."""
    weights = tiny_bundle / "programs" / "step.weights"
    before = weights.stat().st_ino
    with weights.open("rb") as file:
        build_tiny(tiny_bundle)
        assert weights.stat().st_ino != before
        assert os.fstat(file.fileno()).st_ino == before
        assert file.read().startswith(b"weights!")
    assert [p.name for p in tiny_bundle.parent.iterdir()] == [tiny_bundle.name]


def test_an_existing_file_is_refused(tmp_path: Path) -> None:
    """BL-46: --output equal to an existing file."""
    (tmp_path / "out").write_text("precious")
    with pytest.raises(ConfigError, match="is a file"), building_folder(tmp_path / "out"):
        pass
    assert (tmp_path / "out").read_text() == "precious"


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    with pytest.raises(ConfigError, match=r"thesis\.tex"), building_folder(tmp_path / "out"):
        pass
    assert (tmp_path / "out" / "thesis.tex").exists()


def test_a_bundle_with_other_things_in_it_is_refused(tiny_bundle: Path) -> None:
    (tiny_bundle / "notes").write_text("precious")
    with pytest.raises(ConfigError, match="notes"), building_folder(tiny_bundle):
        pass


@pytest.mark.parametrize("text", ['{"name": "a web page"}', "[" * 100_000])
def test_a_foreign_bundle_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_text(text)
    with pytest.raises(ConfigError, match=r"no valid bundle\.json"), building_folder(tmp_path):
        pass


def test_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with building_folder(tmp_path / "out") as building:
        (building.path / "file").touch()
        building.publish()
    assert (tmp_path / "out" / "file").exists()


def test_a_mount_point_is_refused() -> None:
    with pytest.raises(ConfigError, match="mount point"), building_folder(Path("/proc")):
        pass


@pytest.mark.parametrize("name", ["/proc/absent/out", "file/out", "x" * 250])
def test_a_place_that_takes_no_folder_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write"), building_folder(tmp_path / name):
        pass


def test_the_root_is_refused() -> None:
    with pytest.raises(ConfigError, match="name of a new folder"), building_folder(Path("/")):
        pass


def test_missing_parents_are_made(tmp_path: Path) -> None:
    with building_folder(tmp_path / "a" / "b" / "out") as building:
        building.publish()
    assert (tmp_path / "a" / "b" / "out").is_dir()


@pytest.mark.parametrize("name", ["modèles 模型/my bundle#1 (v2)%20", "plain/", "x/../y", "-f"])
def test_any_form_of_a_path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BL-46: unicode, spaces, signs, trailing slash, relative paths."""
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path)
    with building_folder(Path(name)) as building:
        (building.path / "file").touch()
        building.publish()
    assert (tmp_path / name / "file").exists()


def test_a_linked_output_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with building_folder(tmp_path / "link") as building:
        (building.path / "file").touch()
        building.publish()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").exists()


def test_what_a_dead_build_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".out.building-12345").mkdir()
    (tmp_path / ".other.building-12345").mkdir()
    with building_folder(tmp_path / "out") as building:
        building.publish()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".other.building-12345", "out"]


def test_a_running_build_is_left_alone(tmp_path: Path) -> None:
    """Two builds of one output: each has its folder, the later one to finish stands."""
    code = (
        "import sys; from pathlib import Path\n"
        "from atc_pipeline.building_folder import building_folder\n"
        "with building_folder(Path(sys.argv[1])) as building:\n"
        "    (building.path / 'first').touch()\n"
        "    print(flush=True); input(); building.publish()\n"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "out")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with first:
        assert first.stdin is not None
        assert first.stdout is not None
        first.stdout.readline()
        with building_folder(tmp_path / "out") as building:
            (building.path / "bundle.json").touch()
            building.publish()
        # Only now does the first one get on.
        first.stdin.write(b"\n")
    assert first.returncode == 0
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["first"]


def test_a_death_between_the_renames_is_mended(tiny_bundle: Path) -> None:
    """Without an atomic exchange the older bundle may wait under the aside name."""
    tiny_bundle.rename(tiny_bundle.with_name(".tiny.building-12345.old"))
    with pytest.raises(RuntimeError), building_folder(tiny_bundle):
        raise RuntimeError
    assert Manifest.read(tiny_bundle).model.name == "tiny"


def test_exchange_by_renames(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"was {name}").touch()
    exchange_by_renames(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "was b").exists()
    assert (tmp_path / "b" / "was a").exists()


def test_exchange_by_renames_that_fails_restores(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(FileNotFoundError):
        exchange_by_renames(tmp_path / "absent", tmp_path / "b")
    assert [p.name for p in tmp_path.iterdir()] == ["b"]
    shutil.rmtree(tmp_path / "b")
