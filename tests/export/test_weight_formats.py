"""Formats of weights for the host's cores: what they round, what they may not, and their gate."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from export.angle_tables import require_whole_positions, tabulate_angles
from export.bfloat16 import from_bits, to_bits
from export.onnx_writer import GraphWriter
from export.quality import Quality, require_quality
from export.result import PROGRAM_PATH, WEIGHTS_PATH
from export.spec import ExportSpec
from export.weight_format import WeightFormat
from export.weight_rounding import as_stored, to_int8
from omruntime.errors import ConfigError, ExportError, QualityError
from omruntime.manifest import TensorSpec
from omruntime.native import find_library
from tests.export.native_steps import native_difference
from tests.export.tiny import export_tiny, save_checkpoint, tiny_model

COMPRESSED = [WeightFormat.BFLOAT16, WeightFormat.INT8]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_model("llama", tie_word_embeddings=True)
    return save_checkpoint(model, tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.mark.parametrize("weights", COMPRESSED)
def test_a_format_is_proven_measured_and_written_down(
    checkpoint: Path, tmp_path: Path, weights: WeightFormat
) -> None:
    result = export_tiny(checkpoint, tmp_path / "out", weights=weights)
    assert (result.model.dtype, result.kv.dtype) == (weights.value, "bfloat16")
    types = {t.name: t.dtype for t in (*result.program.inputs, *result.program.outputs)}
    assert types["kv_pool.0.key"] == types["new_kv"] == "bfloat16"
    assert types["logits"] == "float32"
    assert result.parity.num_greedy_tokens > 0
    report = json.loads((tmp_path / "out" / "reports" / "quality.json").read_text())
    assert "reports/quality.json" in result.files
    assert report["weights"] == weights.value
    assert report["perplexity_ratio"] == pytest.approx(1, abs=0.02)
    assert "torch" in report["text"]
    if find_library() is not None:
        # OpenVINO computes in bfloat16 where the CPU can.
        assert native_difference(tmp_path / "out", result, "openvino") < 0.05


def test_a_tied_head_is_stored_once_and_no_matrix_in_float32(
    checkpoint: Path, tmp_path: Path
) -> None:
    sizes = {}
    for weights in COMPRESSED:
        export_tiny(checkpoint, tmp_path / weights.value, weights=weights)
        graph = onnx.load(tmp_path / weights.value / PROGRAM_PATH, load_external_data=False).graph
        types = Counter(t.data_type for t in graph.initializer if len(t.dims) == 2)
        wanted = TensorProto.BFLOAT16 if weights is WeightFormat.BFLOAT16 else TensorProto.INT8
        # Of float32 there are the tables of angles alone.
        assert types[TensorProto.FLOAT] == 2
        assert [list(t.dims) for t in graph.initializer if t.data_type == wanted].count(
            [300, 64]
        ) == 1
        sizes[weights] = (tmp_path / weights.value / WEIGHTS_PATH).stat().st_size
    assert sizes[WeightFormat.INT8] < 0.7 * sizes[WeightFormat.BFLOAT16]


def angle_graph(scaled_by: str | None = None) -> GraphWriter:
    """Cosines as models compute them: a position times a frequency."""
    writer = GraphWriter()
    place = writer.emit("Cast", ["positions"], to=TensorProto.FLOAT)
    column = writer.emit("Unsqueeze", [place, writer.ints([-1])])
    angle = writer.emit("Mul", [column, writer.constant(torch.tensor([1.0, 0.01]), "frequency")])
    if scaled_by:
        angle = writer.emit("Mul", [angle, scaled_by])
    writer.emit("Cos", [angle])
    return writer


def test_an_angle_is_looked_up_by_its_exact_position(tmp_path: Path) -> None:
    """bfloat16 takes 257 for 256."""
    writer = angle_graph()
    tabulate_angles(writer, 512)
    cosine = writer.nodes[-1].output[0]
    require_whole_positions(writer, {cosine})
    writer.save(
        tmp_path / "g.onnx",
        tmp_path / "g.weights",
        [TensorSpec("positions", "int32", ("batch", "tokens"))],
        {cosine: TensorSpec("y", "float32", ("batch", "tokens", 2))},
    )
    session = onnxruntime.InferenceSession(tmp_path / "g.onnx")
    positions = np.array([[0, 256, 257], [511, 3, 300]], np.int32)
    (got,) = session.run(None, {"positions": positions})
    np.testing.assert_allclose(got, np.cos(positions[..., None] * np.float32([1, 0.01])), atol=2e-5)


def test_an_angle_of_more_than_positions_is_refused() -> None:
    with pytest.raises(ExportError, match=r"past_lens besides positions.*--weights float32"):
        tabulate_angles(angle_graph("past_lens"), 8)


def test_a_position_that_would_be_rounded_is_refused() -> None:
    writer = angle_graph()
    with pytest.raises(ExportError, match="bfloat16 rounds from 257 on"):
        require_whole_positions(writer, {writer.nodes[-1].output[0]})


@given(st.floats(width=32, allow_nan=False, min_value=-(2.0**100), max_value=2.0**100))
def test_bits_are_those_of_the_nearest_bfloat16(value: float) -> None:
    got = from_bits(to_bits(np.array([value], np.float32)))[0]
    assert got == float(torch.tensor(value, dtype=torch.float32).to(torch.bfloat16))


@pytest.mark.parametrize("axis", [0, 1])
def test_int8_is_off_by_half_a_step_of_its_slice_at_most(axis: int) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(6, 40) * torch.logspace(-3, 3, 6)[:, None]
    matrix[2] = 0
    matrix = matrix if axis == 0 else matrix.T.contiguous()
    stored = to_int8(matrix, axis)
    assert stored.values.dtype is torch.int8
    assert stored.values.abs().amax(1 - axis).tolist() == [127, 127, 0, 127, 127, 127]
    error = (as_stored(matrix, WeightFormat.INT8, axis) - matrix).abs()
    assert (error <= stored.scales.unsqueeze(1 - axis) * 0.5001).all()


@pytest.mark.parametrize(
    ("changes", "figure"),
    [
        ({"perplexity": 10.3}, "ratio 1.0300"),
        ({"clear_top1_agreement": 0.9}, r"90\.0%"),
        ({"mean_kl": 0.5}, "KL 0.5000"),
        ({"mean_kl": float("nan")}, "KL nan"),
    ],
)
def test_a_format_that_costs_too_much_is_refused_with_its_figures(
    changes: dict[str, float], figure: str
) -> None:
    measured = {
        "perplexity_float32": 10.0, "perplexity": 10.0, "top1_agreement": 1.0,
        "clear_top1_agreement": 1.0, "mean_kl": 0.0,
        "max_kl": 0.0,
    }  # fmt: skip
    require_quality(Quality(100, **measured), WeightFormat.INT8)
    with pytest.raises(QualityError, match=f"int8 cost this checkpoint too much.*{figure}"):
        require_quality(Quality(100, **measured | changes), WeightFormat.INT8)


def test_only_the_cpu_lets_its_weights_be_chosen() -> None:
    with pytest.raises(ConfigError, match="weights is int8, but ascend310p"):
        _ = ExportSpec("x", target="Ascend310P3", weights=WeightFormat.INT8).profile
    assert ExportSpec("x", weights=WeightFormat.FLOAT32).profile.name == "cpu"
    assert ExportSpec("x", weights=WeightFormat.BFLOAT16).profile.name == "openvino"
