"""AI CPU traps and shapes that depend on data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto

from tests.atc_pipeline.lint.graphs import (
    BOOL,
    FLOAT16,
    INT32,
    INT64,
    constant,
    found,
    ints,
    lint,
    model,
    node,
    value,
)

ZERO = constant("zero", np.array(0, np.int32))
ONE = constant("one", np.array(1, np.int32))
AXIS = constant("axis", ints(1))


@pytest.mark.parametrize(
    "nodes",
    [
        [node("ScatterElements", ["rows", "at", "rows"], ["y"])],
        [node("IsNaN", ["rows"], ["y"])],
        [node("Cast", ["input_ids"], ["c"], to=INT64), node("CumSum", ["c", "one"], ["y"])],
        [
            node("Cast", ["input_ids"], ["c"], to=BOOL),
            node("Where", ["c", "c", "c"], ["y"]),
        ],
        [
            node("TopK", ["input_ids", "axis"], ["y", "at_y"]),
        ],
        [
            node("Cast", ["rows"], ["c"], to=BOOL),
            node("Slice", ["c", "axis", "axis"], ["y"]),
        ],
    ],
    ids=["scatter", "isnan", "cumsum", "where", "topk", "slice"],
)
def test_ai_cpu_operators_warn_on_310p_alone(tmp_path: Path, nodes: Sequence[NodeProto]) -> None:
    graph = model(nodes, [value("at", INT32, "batch", "tokens", 64)], weights=[ONE, AXIS])
    report = lint(tmp_path, graph)
    assert found(report) == {("ai-cpu", "n_y")}
    assert not report.errors
    assert report.refused(strict=True)
    on_310b = lint(tmp_path, graph, "Ascend310B1")
    assert {finding.rule for finding in on_310b.findings} == {"npu-on-310b"}


@pytest.mark.parametrize(
    "planted",
    [
        node("CumSum", ["input_ids", "one"], ["y"]),
        node("Where", ["flags", "rows", "rows"], ["y"]),
        node("TopK", ["rows", "axis"], ["y", "at_y"]),
        node("Slice", ["rows", "axis", "axis"], ["y"]),
    ],
)
def test_ai_core_types_are_silent(tmp_path: Path, planted: NodeProto) -> None:
    flags = constant("flags", np.ones((1, 1, 64), bool))
    assert not lint(tmp_path, model([planted], weights=[ONE, AXIS, flags])).findings


def test_range_over_a_shape_is_fine_and_over_data_is_refused(tmp_path: Path) -> None:
    limit = [
        node("Shape", ["rows"], ["s"], start=1, end=2),
        node("Squeeze", ["s"], ["n"]),
        node("Range", ["zero64", "n", "one64"], ["y"]),
    ]
    numbers = [constant("zero64", np.array(0)), constant("one64", np.array(1))]
    assert not lint(tmp_path, model(limit, weights=numbers)).findings
    data = [
        node("ReduceMax", ["past_lens"], ["n"], keepdims=0),
        node("Range", ["zero", "n", "one"], ["y"]),
    ]
    graph = model(data, [value("past_lens", INT32, "batch")], weights=[ZERO, ONE])
    assert found(lint(tmp_path, graph)) == {("data-dependent-range", "n_y")}


@pytest.mark.parametrize(
    "planted",
    [
        node("NonZero", ["rows"], ["y"]),
        node("Reshape", ["rows", "data64"], ["y"]),
        node("Expand", ["rows", "data64"], ["y"]),
        node("Tile", ["rows", "data64"], ["y"]),
        node("ConstantOfShape", ["data64"], ["y"]),
        node("Slice", ["rows", "data64", "data64"], ["y"]),
    ],
    ids=lambda planted: planted.op_type,
)
def test_shapes_made_of_data(tmp_path: Path, planted: NodeProto) -> None:
    nodes = [node("Cast", ["past_lens"], ["data64"], to=INT64), planted]
    graph = model(nodes, [value("past_lens", INT32, 3)])
    assert found(lint(tmp_path, graph)) == {("data-dependent-shape", "n_y")}


def test_reshape_by_other_tensors_sizes_is_fine(tmp_path: Path) -> None:
    nodes = [node("Shape", ["rows"], ["s"]), node("Reshape", ["rows", "s"], ["y"])]
    assert not lint(tmp_path, model(nodes)).findings


def test_scatter_nd_warns_for_the_copy(tmp_path: Path) -> None:
    planted = node("ScatterND", ["pool", "at", "new"], ["y"])
    inputs = [value("pool", FLOAT16, 8, 4), value("new", FLOAT16, 1, 4), value("at", INT32, 1, 1)]
    cast = node("Cast", ["at"], ["at64"], to=INT64)
    planted.input[1] = "at64"
    report = lint(tmp_path, model([cast, planted], inputs))
    assert found(report) == {("scatter-nd", "n_y")}


def test_a_graph_that_inference_refuses_is_said_to_be_unknown(tmp_path: Path) -> None:
    report = lint(tmp_path, model([node("Reshape", ["rows"], ["y"])]))
    assert found(report) == {("unknown-shapes", "")}
    assert "n_y" in report.warnings[0].reason
