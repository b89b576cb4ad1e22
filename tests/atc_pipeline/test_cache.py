from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atc_pipeline.cache import (
    BuildIdentity,
    CompileCache,
    cache_key,
    default_cache_folder,
)
from omruntime.errors import ConfigError
from tests.atc_pipeline.fake_ascend import fake_jobs

IDENTITY = BuildIdentity("aa", "bb", "8.5.0", False)
JOB = fake_jobs()[1]
ROOT = Path(__file__).parents[2]


def make_products(folder: Path, content: bytes = b"om" * 1000) -> Path:
    (folder / "weight").mkdir(parents=True)
    (folder / "decode.om").write_bytes(content)
    (folder / "weight" / "weight_1").write_bytes(b"w" * 100)
    (folder / "fusion_result.json").write_text("junk")
    return folder


def empty(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, notes: list[str]) -> CompileCache:
    return CompileCache(tmp_path / "cache", IDENTITY, notes.append)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return make_products(tmp_path / "made")


def entries(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache" / "entries").iterdir())


def test_what_was_stored_comes_back(cache: CompileCache, made: Path, tmp_path: Path) -> None:
    out = empty(tmp_path / "out")
    assert not cache.try_fetch(JOB, out)
    cache.store(JOB, made)
    assert cache.try_fetch(JOB, out)
    names = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())
    assert names == ["decode.om", "weight/weight_1"]
    assert (out / "decode.om").read_bytes() == (made / "decode.om").read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        {"graph_sha256": "x"},
        {"weights_sha256": "x"},
        {"toolkit_version": "9.0.0"},
        {"is_simulated": True},
    ],
)
def test_each_ingredient_makes_another_entry(change: dict[str, object]) -> None:
    other = dataclasses.replace(IDENTITY, **change)  # type: ignore[arg-type]
    assert cache_key(JOB, other) != cache_key(JOB, IDENTITY)


@pytest.mark.parametrize(
    "change",
    [
        {"soc_version": "Ascend310P1"},
        {"dynamic_dims": "1;2"},
        {"output": "other"},
        {"extra": (("log", "info"),)},
    ],
)
def test_each_flag_makes_another_entry(change: dict[str, object]) -> None:
    options = dataclasses.replace(JOB.options, **change)  # type: ignore[arg-type]
    job = dataclasses.replace(JOB, options=options)
    assert cache_key(job, IDENTITY) != cache_key(JOB, IDENTITY)


def test_the_path_of_the_model_does_not_matter() -> None:
    job = dataclasses.replace(
        JOB, options=dataclasses.replace(JOB.options, model="/tmp/x/step.onnx")
    )
    assert cache_key(job, IDENTITY) == cache_key(JOB, IDENTITY)


@pytest.mark.parametrize("name", ["decode.om", "weight/weight_1", "entry.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_entry_is_found_and_removed(
    cache: CompileCache,
    made: Path,
    tmp_path: Path,
    notes: list[str],
    name: str,
    damage: str,
) -> None:
    cache.store(JOB, made)
    path = entries(tmp_path)[0] / name
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    out = empty(tmp_path / "out")
    assert not cache.try_fetch(JOB, out)
    assert list(out.iterdir()) == []
    assert "damaged; compiling again" in notes[0]
    assert entries(tmp_path) == []
    cache.store(JOB, made)
    assert cache.try_fetch(JOB, out)


def test_a_listing_cannot_reach_outside(cache: CompileCache, made: Path, tmp_path: Path) -> None:
    cache.store(JOB, made)
    (entries(tmp_path)[0] / "entry.json").write_text('{"../../../../etc/passwd": "x"}')
    out = empty(tmp_path / "out")
    assert not cache.try_fetch(JOB, out)
    assert list(out.iterdir()) == []


def test_the_least_recently_used_entries_make_room(
    tmp_path: Path, made: Path, notes: list[str]
) -> None:
    """Two entries fit; a use counts, not the age."""
    cache = CompileCache(tmp_path / "cache", IDENTITY, notes.append, max_bytes=5500)
    jobs = [
        dataclasses.replace(JOB, options=dataclasses.replace(JOB.options, output=name))
        for name in ("first", "second", "third")
    ]
    for index, job in enumerate(jobs[:2]):
        cache.store(job, made)
        entry = tmp_path / "cache" / "entries" / cache_key(job, IDENTITY)
        os.utime(entry / "entry.json", (index, index))
    assert cache.try_fetch(jobs[0], empty(tmp_path / "used"))
    cache.store(jobs[2], made)
    found = [cache.try_fetch(job, empty(tmp_path / f"out{i}")) for i, job in enumerate(jobs)]
    assert found == [True, False, True]


def test_what_is_larger_than_the_cache_is_not_kept(
    tmp_path: Path, made: Path, notes: list[str]
) -> None:
    cache = CompileCache(tmp_path / "cache", IDENTITY, notes.append, max_bytes=1000)
    cache.store(JOB, made)
    assert entries(tmp_path) == []
    assert "pass the cache's size" in notes[0]


def test_what_a_dead_build_left_is_removed(cache: CompileCache, made: Path, tmp_path: Path) -> None:
    stale = tmp_path / "cache" / "tmp" / "stale"
    make_products(stale)
    cache.store(JOB, made)
    assert not stale.exists()
    assert len(entries(tmp_path)) == 1


def test_a_second_build_of_the_same_leaves_the_first_entry(
    cache: CompileCache, made: Path, tmp_path: Path
) -> None:
    cache.store(JOB, made)
    before = (entries(tmp_path)[0] / "entry.json").stat().st_ino
    cache.store(JOB, made)
    assert (entries(tmp_path)[0] / "entry.json").stat().st_ino == before


def test_concurrent_builds_do_not_disturb_each_other(tmp_path: Path, made: Path) -> None:
    """Each process stores and fetches the same keys under a size that evicts all the time."""
    code = (
        "import dataclasses, sys; from pathlib import Path\n"
        "from atc_pipeline.cache import CompileCache\n"
        "from tests.atc_pipeline.test_cache import IDENTITY, JOB\n"
        "here, made, me = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]\n"
        "notes = []\n"
        "cache = CompileCache(here / 'cache', IDENTITY, notes.append, max_bytes=5000)\n"
        "for turn in range(30):\n"
        "    options = dataclasses.replace(JOB.options, output=f'o{turn % 3}')\n"
        "    job = dataclasses.replace(JOB, options=options)\n"
        "    cache.store(job, made)\n"
        "    out = here / f'{me}-{turn}'; out.mkdir()\n"
        "    if cache.try_fetch(job, out):\n"
        "        assert (out / 'decode.om').read_bytes() == b'om' * 1000\n"
        "assert notes == [], notes\n"
    )
    builds = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(made), name], cwd=ROOT)
        for name in ("a", "b")
    ]
    assert [build.wait(timeout=60) for build in builds] == [0, 0]


def test_a_place_that_takes_no_cache_is_refused(tmp_path: Path) -> None:
    """BL-46: a read-only home; the message says how to go on."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--no-cache"):
        CompileCache(tmp_path / "file" / "cache", IDENTITY, print)


def test_a_full_disk_does_not_end_the_build(
    cache: CompileCache, made: Path, tmp_path: Path, notes: list[str]
) -> None:
    (tmp_path / "cache" / "tmp").rmdir()
    cache.store(JOB, made)
    assert "not kept in the cache" in notes[0]


def test_where_the_cache_lies() -> None:
    assert default_cache_folder({"OMSERVE_CACHE_DIR": "/c"}) == Path("/c/atc")
    assert default_cache_folder({"HOME": "/me"}) == Path("/me/.cache/omserve/atc")
    with pytest.raises(ConfigError, match="OMSERVE_CACHE_DIR"):
        default_cache_folder({})
