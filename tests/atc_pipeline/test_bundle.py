from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from atc_pipeline.bundle import (
    BuildRecord,
    hash_kv_identity,
    list_files,
    parse_source_date,
    write_manifest,
)
from omruntime.errors import ConfigError, ExportError
from omruntime.manifest import KVLayout, Manifest
from tests.atc_pipeline.fake_export import CONTENT, KV, MODEL, PROGRAM, fake_export

RECORD = BuildRecord("cpu", "tiny.gguf", flags=("--allow-unproven",))


def quiet(stage: str) -> None:
    pass


def write_tiny(folder: Path, record: BuildRecord = RECORD) -> Manifest:
    folder.mkdir()
    return write_manifest(folder, fake_export(folder, quiet), record)


def test_the_manifest_lists_every_file_sorted(tiny_bundle: Path) -> None:
    manifest = Manifest.read(tiny_bundle)
    assert [e.path for e in manifest.files] == sorted([*CONTENT, "reports/build.json"])
    by_path = {e.path: e for e in manifest.files}
    for name, data in CONTENT.items():
        assert by_path[name].size_bytes == len(data)
        assert by_path[name].sha256 == hashlib.sha256(data).hexdigest()


def test_the_manifest_carries_the_export(tiny_bundle: Path) -> None:
    manifest = Manifest.read(tiny_bundle)
    assert (manifest.model, manifest.kv, manifest.programs) == (MODEL, KV, (PROGRAM,))
    assert (manifest.profile, manifest.soc) == ("cpu", "cpu")


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    """Neither the folder, nor the clock, nor the environment gets into the manifest."""
    (tmp_path / "other place").mkdir()
    write_tiny(tmp_path / "a")
    write_tiny(tmp_path / "other place" / "b")
    first, second = (p / "bundle.json" for p in (tmp_path / "a", tmp_path / "other place" / "b"))
    assert first.read_bytes() == second.read_bytes()
    assert str(tmp_path) not in first.read_text()
    assert os.uname().nodename not in first.read_text()


def test_the_date_is_there_only_when_given(tmp_path: Path) -> None:
    assert "source_date" not in write_tiny(tmp_path / "a").provenance
    dated = write_tiny(tmp_path / "b", dataclasses.replace(RECORD, source_date=1700000000))
    assert dated.provenance["source_date"] == "1700000000"


def test_the_provenance_spells_every_limit_out(tmp_path: Path) -> None:
    provenance = write_tiny(tmp_path / "a").provenance
    assert provenance["argv"] == (
        "export-om build tiny.gguf --target cpu --name tiny --block-size 16 "
        "--max-model-len 64 --max-num-seqs 2 --allow-unproven"
    )
    assert provenance["checkpoint_sha256"] == "cd" * 32
    assert provenance["tool.torch"] == "1"
    assert {"tool.omserve", "tool.python"} <= provenance.keys()


def test_a_file_that_the_export_did_not_list_is_refused(tmp_path: Path) -> None:
    graph = fake_export(tmp_path, quiet)
    (tmp_path / "programs" / "left.tmp").touch()
    with pytest.raises(ExportError, match=r"left\.tmp"):
        write_manifest(tmp_path, graph, RECORD)


def test_warnings_are_reported(tiny_bundle: Path) -> None:
    report = json.loads((tiny_bundle / "reports" / "build.json").read_text())
    assert report == {"warnings": ["no end token"]}


def test_kv_identity_changes_with_each_ingredient() -> None:
    """A weak identity would let one model read another's cached keys in silence."""
    inputs = {"weights": "a", "rope": "b"}
    variants = [
        hash_kv_identity(inputs, KV, "cpu"),
        hash_kv_identity({**inputs, "rope": "c"}, KV, "cpu"),
        hash_kv_identity({"weights": "a"}, KV, "cpu"),
        hash_kv_identity(inputs, KV, "ascend310p"),
    ]
    for change in (
        {"layout": KVLayout.TOKEN_MAJOR},
        {"block_size": 32},
        {"dtype": "float16"},
        {"bytes_per_block": 1},
    ):
        variants.append(hash_kv_identity(inputs, dataclasses.replace(KV, **change), "cpu"))
    assert len(set(variants)) == len(variants)
    assert hash_kv_identity({"rope": "b", "weights": "a"}, KV, "cpu") == variants[0]


def test_kv_identity_does_not_depend_on_the_name(tmp_path: Path) -> None:
    plain = write_tiny(tmp_path / "a")
    flagged = write_tiny(tmp_path / "b", BuildRecord("cpu", "elsewhere"))
    assert plain.kv_identity == flagged.kv_identity
    assert len(plain.kv_identity) == 64


def test_source_date() -> None:
    assert parse_source_date({}) is None
    assert parse_source_date({"SOURCE_DATE_EPOCH": "0"}) == 0
    for text in ("", "-1", "1.5", "yesterday", "²"):
        with pytest.raises(ConfigError, match="SOURCE_DATE_EPOCH"):
            parse_source_date({"SOURCE_DATE_EPOCH": text})


def test_list_files_leaves_the_manifest_out(
    tmp_path: Path, build_tiny: Callable[[Path], None]
) -> None:
    build_tiny(tmp_path / "b")
    assert "bundle.json" not in list_files(tmp_path / "b")
