from __future__ import annotations

import json
from pathlib import Path

import pytest

from atc_pipeline.bundle_inspect import describe_as_json, describe_as_text, read_warnings
from omruntime.errors import BundleError
from omruntime.manifest import Manifest


def test_the_text_answers_the_questions(tiny_bundle: Path) -> None:
    text = describe_as_text(Manifest.read(tiny_bundle), read_warnings(tiny_bundle))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for wanted in (
        "name tiny",
        "heads 4 query, 2 key/value of 16",
        "end tokens 0, 2 (from generation_config.json)",
        "begin token none",
        "layout head_major",
        "block_size 16 tokens",
        "input input_ids int32 [batch, tokens]",
        "input kv_pool 2 times float32 [2, num_blocks, 16, 16]",
        "decode buckets 2x1; each over 4 past blocks",
        "prefill buckets 1x16; each over 4 past blocks",
        "largest logits difference 1e-06 (tolerance 0.001)",
        "programs/step.weights 8,192 bytes",
        "tool.torch 1",
        "no end token",
    ):
        assert wanted in lines


def test_the_json_holds_the_whole_manifest(tiny_bundle: Path) -> None:
    manifest = Manifest.read(tiny_bundle)
    plain = json.loads(describe_as_json(manifest, read_warnings(tiny_bundle)))
    assert Manifest.from_json(json.dumps(plain["manifest"])) == manifest
    assert plain["manifest_sha256"] == manifest.digest()
    assert plain["warnings"] == ["no end token"]
    assert plain["total_bytes"] == sum(e.size_bytes for e in manifest.files)


def test_a_bundle_without_a_build_report_has_no_warnings(tmp_path: Path) -> None:
    assert read_warnings(tmp_path) == ()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"warnings": 3}', "[" * 100_000])
def test_a_damaged_build_report_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "build.json").write_text(text)
    with pytest.raises(BundleError, match=r"build\.json"):
        read_warnings(tmp_path)
