"""BL-46: measured costs live beside no bundle, and no file or folder can stop the engine."""

from __future__ import annotations

import json
import logging
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from omruntime.buckets import Bucket, Phase
from omruntime.costs.cost_file import MAX_FILE_BYTES, CostFile, CostKey
from omruntime.costs.cost_table import CostTable
from omruntime.errors import ConfigError
from tests.forked_child import said_by_forked_child

BUCKETS = (Bucket(Phase.DECODE, 1, 1, 4), Bucket(Phase.PREFILL, 1, 16, 4))
KEY = CostKey("digest", "cpu", "cpu", 2)


def make_costs(*seconds: float) -> CostTable:
    costs = CostTable(BUCKETS, block_size=16)
    for bucket, value in zip(BUCKETS, seconds, strict=False):
        costs.measure(bucket, value)
    return costs


def path_of(file: CostFile) -> Path:
    assert file.path is not None
    return file.path


def saved(folder: Path) -> CostFile:
    file = CostFile.within(folder, KEY)
    costs = make_costs(0.25, 0.5)
    costs.switch_s = 0.125
    file.save(costs)
    return file


def test_costs_come_back(tmp_path: Path) -> None:
    costs = make_costs()
    saved(tmp_path / "not" / "there yet").load_into(costs)
    assert dict(costs.measured) == dict(zip(BUCKETS, (0.25, 0.5), strict=True))
    assert costs.switch_s == 0.125
    assert [p.suffix for p in (tmp_path / "not" / "there yet").rglob("*.*")] == [".json"]


def test_a_run_with_fewer_buckets_keeps_the_costs_of_the_others(tmp_path: Path) -> None:
    path = path_of(saved(tmp_path))
    narrow = CostTable(BUCKETS[:1], block_size=16)
    file = CostFile(path, KEY)
    file.load_into(narrow)
    assert dict(narrow.measured) == {BUCKETS[0]: 0.25}
    narrow.measure(BUCKETS[0], 0.75)
    file.save(narrow)
    costs = make_costs()
    CostFile(path, KEY).load_into(costs)
    assert dict(costs.measured) == dict(zip(BUCKETS, (0.75, 0.5), strict=True))


@pytest.mark.parametrize(
    "changed", [{"manifest_digest": "x"}, {"device": "x"}, {"soc": "x"}, {"num_threads": 3}]
)
def test_every_part_of_the_key_counts(tmp_path: Path, changed: dict[str, str | int]) -> None:
    path = path_of(saved(tmp_path))
    other = CostFile.within(tmp_path, replace(KEY, **changed))  # type: ignore[arg-type]
    assert other.path != path
    costs = make_costs()
    other.load_into(costs)
    assert not costs.measured
    # The other way round: the name fits and the content does not.
    CostFile(path, replace(KEY, **changed)).load_into(costs)  # type: ignore[arg-type]
    assert not costs.measured


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff\xfe",
        b"[" * 100_000,
        b" " * (MAX_FILE_BYTES + 1),
        {"format_version": 2},
        {"switch_s": -1.0},
        {"switch_s": True},
        {"switch_s": 10**400},
        {"seconds": [["decode", 1, 1, 4, 1e308]]},
        {"seconds": 3},
        {"seconds": [["decode", 1, 1, 4, 0.0]]},
        {"seconds": [["decode", 1, 1, 4, float("nan")]]},
        {"seconds": [["decode", 1, 1, 4, "1"]]},
        {"seconds": [["decode", 1.0, 1, 4, 1.0]]},
        {"seconds": [["decode", 0, 1, 4, 1.0]]},
        {"seconds": [["encode", 1, 1, 4, 1.0]]},
        {"seconds": [["decode", 1, 1, 4]]},
    ],
)
def test_a_damaged_or_foreign_file_is_ignored_with_one_warning(
    tmp_path: Path, text: bytes | dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    file = saved(tmp_path)
    if isinstance(text, dict):
        text = json.dumps(json.loads(path_of(file).read_text()) | text).encode()
    path_of(file).write_bytes(text)
    costs = make_costs()
    with caplog.at_level(logging.INFO):
        file.load_into(costs)
    assert not costs.measured
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    file.save(make_costs(1.0))
    file.load_into(costs)
    assert costs.measured, "it is written anew"


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file in the place of the folder refuses root as well."""
    (tmp_path / "costs").write_text("in the way")
    with caplog.at_level(logging.INFO):
        CostFile.within(tmp_path, KEY).save(make_costs(1.0))
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "stay in memory" in caplog.text


def test_a_full_disk_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path: Path) -> None:
    """A limit on file sizes fails a write half way, as a full disk does."""
    file = saved(tmp_path)
    before = path_of(file).read_bytes()

    def save_where_100_bytes_fit() -> list[str]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        file.save(make_costs(7.0))
        return sorted(path.name for path in path_of(file).parent.iterdir())

    assert said_by_forked_child(save_where_100_bytes_fit) == str([path_of(file).name])
    assert path_of(file).read_bytes() == before


def test_two_servers_on_one_file_never_see_half_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """BL-46: the last one to save wins, whole."""
    servers = [saved(tmp_path), saved(tmp_path)]

    def save_often(index: int) -> None:
        for _ in range(50):
            servers[index].save(make_costs(1.0 + index))

    with ThreadPoolExecutor() as pool, caplog.at_level(logging.INFO):
        savings = [pool.submit(save_often, index) for index in range(2)]
        while not all(saving.done() for saving in savings):
            costs = make_costs()
            servers[0].load_into(costs)
            assert set(costs.measured.values()) in ({0.25, 0.5}, {1.0}, {2.0})
    told = {record.getMessage().split(" path=")[0] for record in caplog.records}
    assert told == {"measured costs read", "measured costs written"}
    assert [path.name for path in path_of(servers[0]).parent.iterdir()] == [KEY.file_name()]


def test_a_user_without_a_home_has_no_file_and_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A container may run as a user id that nobody has; the shell's name for no user is alike."""
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.INFO):
        file = CostFile.within(Path("~no such user/omserve"), KEY)
        file.save(make_costs(1.0))
        file.load_into(make_costs())
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert not list(tmp_path.iterdir())


def test_the_key_of_a_file_can_be_read(tmp_path: Path) -> None:
    file = saved(tmp_path)
    assert CostKey.read(path_of(file)) == KEY
    path_of(file).write_text("{}")
    with pytest.raises(ConfigError, match="no file of measured costs"):
        CostKey.read(path_of(file))
