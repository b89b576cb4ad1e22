"""Every proven architecture and setting as a float16 graph of both Ascend profiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from atc_pipeline.lint.check import lint_model
from atc_pipeline.lint.gears import Gears
from export.architectures import PROVEN_MODEL_TYPES
from export.profiles import ASCEND310B, ASCEND310P, Profile
from export.step_shape import StepShape, input_specs, output_specs
from tests.export.half import (
    BLOCK,
    BUCKETS,
    Proof,
    product_types,
    prove,
    trace_half,
    types_into,
)
from tests.export.tiny import tiny_model
from tests.export.zoo import CASES, Case

PROFILES = (ASCEND310P, ASCEND310B)
# Each architecture, and the settings that change what is lowered; what only changes numbers is
# proven in float32.
SAME_GRAPH = frozenset(
    {
        "llama-tied",
        "llama-one-kv-head-each",
        "llama-llama3-rope",
        "llama-dynamic-rope",
        "qwen2-window-off",
        "qwen2-window-none",
        "phi3",
    }
)
HALF_CASES = [case for case in CASES if str(case) not in SAME_GRAPH]
# Registered for ai.onnx 18, with a kernel on the AI Core of 310P for the types used here.
# Source: hicann/ops-math and hicann/ops-nn, REGISTER_CUSTOM_OP statements; hicann/docs,
# atlas_infer_ops_list/ops.
AI_CORE_OPS = frozenset(
    {
        "Add",
        "And",
        "Cast",
        "Concat",
        "Cos",
        "Div",
        "Equal",
        "Expand",
        "Gather",
        "Gemm",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "MatMul",
        "Mul",
        "Neg",
        "Pow",
        "Range",
        "Reciprocal",
        "ReduceMean",
        "ReduceSum",
        "Reshape",
        "Shape",
        "Sigmoid",
        "Sin",
        "Slice",
        "Softmax",
        "Split",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Tanh",
        "Transpose",
        "Unsqueeze",
        "Where",
    }
)
NPU_OPS = frozenset({"NPURmsNorm", "NPURotaryMul"})


@dataclass(frozen=True)
class Traced:
    """The graphs of one case, and what they are held against."""

    folder: Path
    shapes: dict[str, StepShape]
    proof: Proof

    def program(self, profile: Profile) -> Path:
        return self.folder / profile.name / "step.onnx"


@pytest.fixture(scope="module", params=HALF_CASES, ids=str)
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    case: Case = request.param
    folder = tmp_path_factory.mktemp("half")
    model = tiny_model(case.model_type, **case.config)
    shapes = {p.name: trace_half(model, p, folder / p.name) for p in PROFILES}
    return Traced(folder, shapes, prove(model, shapes[ASCEND310P.name]))


def test_every_architecture_has_a_case() -> None:
    assert {case.model_type for case in HALF_CASES} == PROVEN_MODEL_TYPES


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.name)
def test_a_float16_graph_is_as_close_as_float16_allows(traced: Traced, profile: Profile) -> None:
    report = traced.proof.check(traced.program(profile), traced.shapes[profile.name])
    limits = report.limits
    assert 0 < report.max_abs_logits_diff <= limits.logits < 0.01 * report.max_abs_logit
    # The graph rounds elsewhere than the rounded checkpoint does, but about as much.
    assert report.max_abs_logits_diff < 2.5 * max(limits.expected, limits.logits / 4)
    assert report.num_top1_equal == report.num_rows >= 8
    assert report.num_greedy_tokens >= 20
    assert report.max_kl < 1e-4


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.name)
def test_a_graph_holds_what_atc_compiles_for_the_ai_core(traced: Traced, profile: Profile) -> None:
    model = onnx.load(traced.program(profile), load_external_data=False)
    shape = traced.shapes[profile.name]
    ops = {(node.domain, node.op_type) for node in model.graph.node}
    assert {op for domain, op in ops if not domain} <= AI_CORE_OPS
    assert {op for domain, op in ops if domain == "npu"} <= NPU_OPS
    assert {o.domain: o.version for o in model.opset_import} == {"": 18} | (
        {"npu": 1} if ("npu", "NPURmsNorm") in ops else {}
    )
    if profile is ASCEND310B:
        assert not {"Slice", *NPU_OPS} & {op for _, op in ops}
    assert product_types(model) == {TensorProto.FLOAT16}
    precise = types_into(model, "Softmax", "Cos", "Sin", "Tanh", "Sqrt", "Reciprocal")
    assert precise == {TensorProto.FLOAT}
    assert not list(_casts_to(model, TensorProto.INT64))
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)
    assert all(name for node in model.graph.node for name in (*node.input, *node.output))
    _assert_contract(model, shape)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.name)
def test_the_lint_has_nothing_to_say(traced: Traced, profile: Profile) -> None:
    gears = Gears.per_phase(BUCKETS, 6, BLOCK)
    report = lint_model(traced.program(profile), profile.targets[0], gears)
    assert report.findings == (), report.to_text()
    assert report.num_nodes > 100


def _casts_to(model: onnx.ModelProto, kind: int) -> Iterator[onnx.NodeProto]:
    return (n for n in model.graph.node if n.op_type == "Cast" and n.attribute[0].i == kind)


def _assert_contract(model: onnx.ModelProto, shape: StepShape) -> None:
    """One pool that is only ever viewed and gathered from, and the contract's tensors."""
    for values, specs in (
        (model.graph.input, input_specs(shape)),
        (model.graph.output, output_specs(shape)),
    ):
        got = [
            (v.name, tuple(d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim))
            for v in values
        ]
        assert got == [(spec.name, spec.shape) for spec in specs]
    assert [v.name for v in model.graph.input][5:] == ["kv_pool"]
    (view,) = [n for n in model.graph.node if "kv_pool" in n.input]
    assert view.op_type == "Reshape"
    readers = {n.op_type for n in model.graph.node if view.output[0] in n.input}
    assert readers == {"Gather"}
