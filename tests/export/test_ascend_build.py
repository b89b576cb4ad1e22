"""A whole export for an Ascend device: facts, files, and proving it again without torch."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from export.profiles import ASCEND310P
from export.recheck import recheck_bundle
from export.replay import replay_bundle
from export.result import PROGRAM_PATH, WEIGHTS_PATH, ExportResult
from export.spec import ExportSpec
from omruntime.buckets import Bucket, Phase
from omruntime.errors import BundleError, ConfigError, ParityError
from omruntime.manifest import KVLayout, KVSpec, Manifest
from tests.export.half import trace_half
from tests.export.tiny import export_tiny, save_checkpoint, tiny_model

TARGET = "Ascend310P3"
BLOCK = 8
BUCKETS = (
    Bucket(Phase.DECODE, 2, 1, 4),
    Bucket(Phase.PREFILL, 1, 8, 1),
    Bucket(Phase.PREFILL, 1, 16, 4),
)
SETTINGS: dict[str, object] = {
    "target": TARGET,
    "block_size": BLOCK,
    "buckets": BUCKETS,
    "max_model_len": 32,
    "max_num_seqs": 2,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Heads of 64 and the usual epsilon of llama, so that both npu operators stand in the graph.
    model = tiny_model("llama", head_dim=64, rms_norm_eps=1e-5)
    return save_checkpoint(model, tmp_path_factory.mktemp("half") / "checkpoint")


@pytest.fixture(scope="module")
def out(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("half") / "out"


@pytest.fixture(scope="module")
def result(checkpoint: Path, out: Path) -> ExportResult:
    return export_tiny(checkpoint, out, **SETTINGS)


def manifest_of(result: ExportResult) -> Manifest:
    return Manifest(
        format_version=1,
        graph_contract=1,
        profile="ascend310p",
        soc=TARGET,
        kv_identity="",
        model=result.model,
        kv=result.kv,
        programs=(dataclasses.replace(result.program, path="programs/decode.om"),),
        files=(),
        parity=result.parity,
        provenance={"checkpoint_sha256": result.checkpoint_sha256},
    )


def test_the_facts_are_those_of_the_target(result: ExportResult, out: Path) -> None:
    # 2 layers, keys and values, 2 KV heads of 64, 2 bytes each, 8 tokens; 4 blocks a sequence.
    assert result.kv == KVSpec(KVLayout.TOKEN_MAJOR, BLOCK, "float16", 2 * 2 * 2 * 64 * 2 * 8, 9)
    assert (result.model.dtype, result.program.buckets) == ("float16", BUCKETS)
    assert result.program.inputs[5].shape == ("num_slots", 8, 64)
    assert result.program.outputs[1].shape == ("new_tokens", 8, 64)
    facts = result.kv_identity_inputs
    assert (facts["dtype"], facts["layout"]) == ("float16", "token_major")
    assert facts["profile_revision"] == "ascend310p-1"
    written = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())
    assert tuple(written) == result.files


def test_the_weights_are_stored_once_in_float16(result: ExportResult, out: Path) -> None:
    model = onnx.load(out / PROGRAM_PATH, load_external_data=False)
    parameters = sum(p.numel() for p in tiny_model("llama", head_dim=64).parameters())
    stored = (out / WEIGHTS_PATH).stat().st_size
    assert 2 * parameters - 2048 <= stored <= 2 * parameters + 4096 * len(model.graph.initializer)
    assert {n.op_type for n in model.graph.node if n.domain} == {"NPURmsNorm", "NPURotaryMul"}
    for tensor in model.graph.initializer:
        assert {e.key for e in tensor.external_data} <= {"location", "offset", "length"}


def test_the_reports_say_how_far_off_float16_is(result: ExportResult, out: Path) -> None:
    parity = json.loads((out / "reports/parity.json").read_text())
    assert parity["dtype"] == "float16"
    assert 0 < parity["mean_abs_logits_diff"] <= parity["max_abs_logits_diff"]
    assert parity["max_abs_logits_diff"] <= parity["tolerance"]
    assert parity["tolerance"] == pytest.approx(4 * parity["expected_logits_diff"], rel=1)
    assert parity["top1_agreement"] == 1
    assert 0 <= parity["mean_kl"] <= parity["max_kl"] < 1e-4
    ranges = json.loads((out / "reports/range.json").read_text())
    assert (ranges["num_overflowing"], ranges["largest"]) == (0, 65504)
    assert len(ranges["weights"]) == 2 * 9 + 3


def test_a_bundle_is_replayed_from_the_graph_it_keeps(result: ExportResult, out: Path) -> None:
    report = replay_bundle(out, manifest_of(result), 1)
    assert report.num_tokens >= 3 * 16
    assert 0 < report.max_abs_logits_diff <= result.parity.tolerance


def test_a_bundle_is_held_against_its_checkpoint_again(
    result: ExportResult, checkpoint: Path, out: Path
) -> None:
    spec = ExportSpec(str(checkpoint), target=TARGET, num_threads=1)
    assert recheck_bundle(out, manifest_of(result), spec, lambda _line: None) == result.parity


def test_a_damaged_weight_is_found_in_its_layer(
    result: ExportResult, checkpoint: Path, out: Path, tmp_path: Path
) -> None:
    (tmp_path / "programs").mkdir()
    model = onnx.load(out / PROGRAM_PATH)
    (tensor,) = [t for t in model.graph.initializer if "layers.1.self_attn.k_proj" in t.name]
    wrong = numpy_helper.to_array(tensor) * np.float16(1.05)
    tensor.CopyFrom(numpy_helper.from_array(wrong, tensor.name))
    onnx.save(model, tmp_path / PROGRAM_PATH)
    spec = ExportSpec(str(checkpoint), target=TARGET, num_threads=1)
    with pytest.raises(ParityError, match="the first diverging layer is 1, in its keys"):
        recheck_bundle(tmp_path, manifest_of(result), spec, lambda _line: None)


def test_a_bundle_without_its_graph_says_so(
    result: ExportResult, out: Path, tmp_path: Path
) -> None:
    (tmp_path / "reports").mkdir()
    shutil.copy(out / "reports/reference.json", tmp_path / "reports")
    with pytest.raises(BundleError, match=r"keeps no programs/step\.onnx"):
        replay_bundle(tmp_path, manifest_of(result), 1)


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    model = tiny_model("llama", head_dim=64)
    for name in ("one", "other"):
        trace_half(model, ASCEND310P, tmp_path / name)
    for name in ("step.onnx", "step.weights"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_a_pool_asked_for_is_the_pool_compiled_for(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num_blocks is 4, wanted at least 5"):
        export_tiny(checkpoint, tmp_path / "out", **SETTINGS, num_blocks=4)


def test_heads_that_do_not_align_are_refused(tmp_path: Path) -> None:
    """One layer, one KV head of 8: 32 bytes a token, and copies go in steps of 64."""
    model = tiny_model("llama", head_dim=8, num_key_value_heads=1, num_hidden_layers=1)
    checkpoint = save_checkpoint(model, tmp_path / "checkpoint")
    with pytest.raises(ConfigError, match="one token take 32 bytes, wanted a multiple of 64"):
        export_tiny(checkpoint, tmp_path / "out", **SETTINGS)
