"""The gate fails when the graph is wrong, and says where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from transformers import PreTrainedModel

from export.bucket_grids import default_buckets
from export.facts import step_shape
from export.graphs import StepGraph
from export.hf_reference import TeacherForced
from export.parity import ParityInput, check_parity, run_reference, tolerance_for
from export.parity_report import ParityReport
from export.profiles import CPU
from export.session import open_session
from export.tolerance import single_tolerance
from export.trace import write_step_graph
from omruntime.buckets import BucketTable
from omruntime.errors import ExportError, ParityError
from tests.export.tiny import LENGTH, tiny_model


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def program(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    graph = StepGraph(model, step_shape(model, 16))
    write_step_graph(graph, folder / "step.onnx", folder / "step.weights")
    graph.release()
    return folder / "step.onnx"


@pytest.fixture(scope="module")
def given_input(model: PreTrainedModel) -> ParityInput:
    rng = np.random.default_rng(3)
    return ParityInput(
        shape=step_shape(model, 16),
        table=BucketTable(default_buckets(CPU, LENGTH, 4, 16), 16),
        token_ids=tuple(rng.integers(3, 300, LENGTH).tolist()),
        prompts=((5, 6, 7), (8,), tuple(range(20, 50))),
    )


def _check(model: PreTrainedModel, path: Path, given: ParityInput) -> ParityReport:
    reference = run_reference(model, given)
    tolerance = tolerance_for(model, given, reference, allows_overflow=False)
    return check_parity(open_session(path, 1), given, reference, tolerance, lambda _line: None)


def test_a_right_graph_passes(
    model: PreTrainedModel, program: Path, given_input: ParityInput
) -> None:
    report = _check(model, program, given_input)
    # 61 + 63 + 34 tokens until the sequences are as long as the buckets allow.
    assert report.num_greedy_tokens == 61 + 63 + 34
    assert len(report.cases) > 16
    assert 0 < report.max_abs_logits_diff < 1e-5
    assert report.summary().num_cases == len(report.cases)


def _damaged(program: Path, folder: Path, weight: str) -> Path:
    """The program with one constant doubled."""
    model = onnx.load(program)
    (tensor,) = [t for t in model.graph.initializer if weight in t.name]
    tensor.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, folder / "step.onnx")
    return folder / "step.onnx"


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ("layers.0.self_attn.q_proj", "the first diverging layer is 0"),
        ("layers.0.mlp.down_proj", "the first diverging layer is 1"),
        ("lm_head", "the last layer or the output head differs"),
    ],
)
def test_a_wrong_weight_is_traced_to_its_layer(
    weight: str,
    message: str,
    model: PreTrainedModel,
    program: Path,
    given_input: ParityInput,
    tmp_path: Path,
) -> None:
    path = _damaged(program, tmp_path, weight)
    with pytest.raises(ParityError, match=message):
        _check(model, path, given_input)


def test_a_wrong_mask_is_found(
    model: PreTrainedModel, program: Path, given_input: ParityInput, tmp_path: Path
) -> None:
    """Without the mask over the past, the noise in unused blocks shows."""
    onnx_model = onnx.load(program)
    (less,) = [n for n in onnx_model.graph.node if n.op_type == "Less"]
    less.op_type = "LessOrEqual"
    path = tmp_path / "step.onnx"
    onnx.save(onnx_model, path)
    with pytest.raises(ParityError, match="logits differ"):
        _check(model, path, given_input)


def test_another_models_weights_are_found(program: Path, given_input: ParityInput) -> None:
    other = tiny_model("llama", rope_parameters={"rope_type": "default", "rope_theta": 9000.0})
    with pytest.raises(ParityError, match=r"the first diverging layer is 0, in its keys"):
        _check(other, program, given_input)


def test_a_file_that_is_no_graph_is_named(tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    path.write_bytes(b"nonsense")
    with pytest.raises(ExportError, match="ONNX Runtime cannot load"):
        open_session(path, 1)


def test_the_block_size_is_free(model: PreTrainedModel, tmp_path: Path) -> None:
    shape = step_shape(model, 5)
    graph = StepGraph(model, shape)
    write_step_graph(graph, tmp_path / "step.onnx", tmp_path / "step.weights")
    graph.release()
    given = ParityInput(
        shape=shape,
        table=BucketTable(default_buckets(CPU, 23, 3, 5), 5),
        token_ids=tuple(range(30, 53)),
        prompts=((5, 6, 7),),
    )
    assert _check(model, tmp_path / "step.onnx", given).num_greedy_tokens == 20
    assert replace(shape, block_size=16) == step_shape(model, 16)


def test_logits_far_from_zero_tie_within_their_rounding() -> None:
    """A right GPT-2 of logits near -1000 was refused for a lead of 1.2e-4."""
    kv = np.ones((1, 2, 1, 1, 1), np.float32)

    def near_tie(shift: float) -> float:
        row = np.array([0.5, -8.0, 20.0], np.float32) - np.float32(shift)
        return single_tolerance(TeacherForced({0: row}, kv)).near_tie

    assert near_tie(0.0) == near_tie(-20.0) == 1e-4
    assert 2.5e-4 < near_tie(130.0) < 3e-4
