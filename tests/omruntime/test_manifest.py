"""The manifest is read back as it was written, and anything else is refused by field name."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omruntime.buckets import Bucket, Phase
from omruntime.errors import BundleError
from omruntime.manifest import (
    MANIFEST_NAME,
    FileEntry,
    KVLayout,
    KVSpec,
    Manifest,
    ModelFacts,
    ParitySummary,
    ProgramSpec,
    SamplingDefaults,
    TensorSpec,
)

MANIFEST = Manifest(
    format_version=1,
    graph_contract=1,
    profile="cpu",
    soc="cpu",
    kv_identity="0f" * 32,
    model=ModelFacts(
        name="modèle/模型",
        architecture="LlamaForCausalLM",
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=131,
        max_model_len=64,
        max_num_seqs=4,
        dtype="float32",
        bos_token_id=None,
        eos_token_ids=(0, 2),
        eos_source="generation_config.json",
        sampling_defaults=SamplingDefaults(temperature=0.6, top_k=20),
    ),
    kv=KVSpec(KVLayout.HEAD_MAJOR, block_size=16, dtype="float32", bytes_per_block=8192),
    programs=(
        ProgramSpec(
            role="step",
            path="programs/step.onnx",
            inputs=(TensorSpec("input_ids", "int32", ("batch", "tokens")),),
            outputs=(TensorSpec("logits", "float32", ("batch", 131)),),
            buckets=(Bucket(Phase.DECODE, 4, 1, 4), Bucket(Phase.PREFILL, 1, 8, 4)),
        ),
    ),
    files=(FileEntry("programs/step.onnx", 17, "ab" * 32),),
    parity=ParitySummary(2e-6, 1e-4, 64, 0, 3),
    provenance={"omserve": "0.1.0"},
)


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    """The text of a manifest after a change to its plain form."""
    plain = json.loads(MANIFEST.to_json())
    change(plain)
    return json.dumps(plain)


def test_reading_gives_back_what_was_written() -> None:
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST


def test_text_is_canonical() -> None:
    text = MANIFEST.to_json()
    assert Manifest.from_json(text).to_json() == text
    assert text.endswith("}\n")
    assert "模型" in text
    keys = list(json.loads(text))
    assert keys == sorted(keys)


def test_digest_follows_every_field() -> None:
    other = dataclasses.replace(MANIFEST, provenance={"omserve": "0.1.1"})
    assert other.digest() != MANIFEST.digest()
    assert Manifest.from_json(MANIFEST.to_json()).digest() == MANIFEST.digest()


def test_bucket_table_holds_the_step_programs_only() -> None:
    [step] = MANIFEST.programs
    other = dataclasses.replace(step, role="embed", buckets=(Bucket(Phase.PREFILL, 9, 9, 9),))
    table = dataclasses.replace(MANIFEST, programs=(step, other)).bucket_table()
    assert set(table) == set(step.buckets)
    assert table.block_size == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("soc"), r"missing fields \['soc'\]"),
        (lambda m: m.update(more=1), r"unknown fields \['more'\]"),
        (lambda m: m["model"].pop("head_dim"), r"model: missing fields \['head_dim'\]"),
        (
            lambda m: m["model"]["sampling_defaults"].update(top_p=0.0),
            r"sampling_defaults: top_p is 0\.0, wanted above 0 and up to 1",
        ),
        (lambda m: m["model"].update(vocab_size="131"), r"model\.vocab_size: got '131' \(str\)"),
        (lambda m: m["model"].update(vocab_size=131.0), r"model\.vocab_size: .*wanted int"),
        (lambda m: m["model"].update(num_layers=True), r"model\.num_layers: .*bool.*wanted int"),
        (lambda m: m["model"].update(bos_token_id="x"), r"bos_token_id: .*wanted int or NoneType"),
        (lambda m: m["model"].update(eos_token_ids=2), r"eos_token_ids: got 2 .*wanted a list"),
        (lambda m: m["model"].update(eos_token_ids=[None]), r"eos_token_ids\[0\]: .*wanted int"),
        (lambda m: m["kv"].update(layout="diagonal"), r"kv\.layout: .*head_major.*token_major"),
        (lambda m: m["kv"].update(layout=[]), r"kv\.layout"),
        (lambda m: m.update(programs={}), r"programs: .*wanted a list"),
        (lambda m: m.update(programs=[3]), r"programs\[0\]: .*wanted an object"),
        (lambda m: m.update(provenance=[]), r"provenance: .*wanted an object"),
        (lambda m: m["provenance"].update(a=1), r"provenance\.a: .*wanted str"),
        (
            lambda m: m["programs"][0]["inputs"][0].update(shape=["batch", 1.5]),
            r"programs\[0\]\.inputs\[0\]\.shape\[1\]: .*wanted int or str",
        ),
        (lambda m: m["parity"].update(tolerance=10**400), r"parity\.tolerance"),
        (lambda m: m["parity"].update(tolerance=float("nan")), r"tolerance: got nan .*finite"),
        (lambda m: m["parity"].update(tolerance=float("inf")), r"tolerance: got inf .*finite"),
    ],
)
def test_wrong_field_is_named(change: Callable[[dict[str, Any]], object], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        Manifest.from_json(changed(change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["kv"].update(block_size=0), r"kv: block_size is 0, wanted at least 1"),
        (lambda m: m["kv"].update(bytes_per_block=-1), r"kv: bytes_per_block is -1"),
        (lambda m: m["model"].update(vocab_size=0), r"model: vocab_size is 0"),
        (lambda m: m["model"].update(max_model_len=1), r"model: max_model_len is 1, .*least 2"),
        (lambda m: m["model"].update(max_num_seqs=0), r"model: max_num_seqs is 0"),
        (lambda m: m["model"].update(eos_token_ids=[131]), r"eos_token_ids.* 131.* 0 to 130"),
        (lambda m: m["model"].update(bos_token_id=-1), r"bos_token_id.* -1.* 0 to 130"),
        (
            lambda m: m["programs"][0]["buckets"][0].update(batch=0),
            r"programs\[0\]\.buckets\[0\]: batch is 0, wanted at least 1",
        ),
        (
            lambda m: m["programs"][0]["buckets"][0].update(tokens=2),
            r"programs\[0\]\.buckets\[0\]: tokens is 2, wanted 1 in the decode phase",
        ),
        (
            lambda m: m["programs"][0]["buckets"][0].update(past_blocks=-1),
            r"programs\[0\]\.buckets\[0\]: past_blocks is -1, wanted at least 0",
        ),
        (lambda m: m["files"][0].update(size_bytes=-1), r"files\[0\]: size_bytes is -1"),
    ],
)
def test_impossible_value_is_named(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        Manifest.from_json(changed(change))


def test_whole_number_is_read_as_a_float_where_one_is_wanted() -> None:
    manifest = Manifest.from_json(changed(lambda m: m["parity"].update(tolerance=1)))
    assert type(manifest.parity.tolerance) is float


@pytest.mark.parametrize("key", ["format_version", "graph_contract"])
def test_another_version_is_refused_before_anything_else(key: str) -> None:
    text = json.dumps({key: 2, "format_version": 2 if key == "format_version" else 1})
    with pytest.raises(BundleError, match=rf"{key} is 2, this omserve reads 1; build .* again"):
        Manifest.from_json(text)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", "[" * 100_000, '{"format_version": ' + "9" * 5000 + "}"],
    ids=["empty", "cut", "list", "number", "null", "deep", "huge number"],
)
def test_text_that_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(BundleError, match=MANIFEST_NAME):
        Manifest.from_json(text)


@given(st.data())
def test_damaged_text_is_refused_or_read_but_never_crashes(data: st.DataObject) -> None:
    text = MANIFEST.to_json()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 20)))
    damaged = text[:start] + data.draw(st.text('{}[],:"0123456789etrufalsn-.', max_size=4))
    with contextlib.suppress(BundleError):
        Manifest.from_json(damaged + text[end:])


def test_manifest_of_a_bundle_is_read(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_text(MANIFEST.to_json(), encoding="utf-8")
    assert Manifest.read(tmp_path) == MANIFEST


def test_folder_that_is_no_bundle_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=rf"cannot read .*{tmp_path.name}.*export-om build"):
        Manifest.read(tmp_path)
    (tmp_path / MANIFEST_NAME).write_bytes(b"\xff\xfe")
    with pytest.raises(BundleError, match="cannot read"):
        Manifest.read(tmp_path)
