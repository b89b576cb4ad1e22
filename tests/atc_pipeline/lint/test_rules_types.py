"""Element types: what each profile takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.atc_pipeline.lint.graphs import (
    FLOAT,
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

BFLOAT16, DOUBLE = TensorProto.BFLOAT16, TensorProto.DOUBLE


@pytest.mark.parametrize("dtype", [INT64, TensorProto.BOOL, DOUBLE, TensorProto.INT8])
def test_graph_input_types(tmp_path: Path, dtype: int) -> None:
    assert found(lint(tmp_path, model([], [value("mask", dtype, 4)]))) == {
        ("graph-input-type", "mask")
    }


@pytest.mark.parametrize("dtype", [INT32, FLOAT, TensorProto.FLOAT16])
def test_graph_input_types_that_are_taken(tmp_path: Path, dtype: int) -> None:
    assert not lint(tmp_path, model([], [value("mask", dtype, 4)])).findings


def test_stored_types_that_no_released_parser_knows(tmp_path: Path) -> None:
    tensor = helper.make_tensor("text", TensorProto.STRING, [1], [b"a"])
    assert found(lint(tmp_path, model([], weights=[tensor]))) == {("tensor-type", "text")}


def test_bfloat16_is_for_310b_alone(tmp_path: Path) -> None:
    graph = model([node("Cast", ["rows"], ["y"], to=BFLOAT16)])
    assert found(lint(tmp_path, graph)) == {("bfloat16", "n_y")}
    report = lint(tmp_path, graph, "Ascend310B1")
    assert "bfloat16" not in {finding.rule for finding in report.findings}


def test_double_of_the_data_warns_and_of_constants_does_not(tmp_path: Path) -> None:
    double = constant("double", np.zeros(4))
    moving = model([node("Cast", ["rows"], ["y"], to=DOUBLE)])
    assert found(lint(tmp_path, moving)) == {("float64", "n_y")}
    static = model([node("Neg", ["double"], ["y"])], weights=[double])
    assert not lint(tmp_path, static).findings


def test_int64_arithmetic_on_shapes_is_folded_and_on_data_is_not(tmp_path: Path) -> None:
    shapes = [node("Shape", ["rows"], ["s"]), node("Mul", ["s", "s"], ["y"])]
    assert not lint(tmp_path, model(shapes)).findings
    data = [node("Cast", ["input_ids"], ["s"], to=INT64), node("Mul", ["s", "s"], ["y"])]
    report = lint(tmp_path, model(data))
    assert found(report) == {("int64-arithmetic", "n_y")}
    assert not report.errors


@pytest.mark.parametrize("target", ["Ascend310P3", "Ascend310B4"])
def test_float32_matmul_is_a_trap_on_310p(tmp_path: Path, target: str) -> None:
    weights = [constant("w", np.zeros((64, 8), np.float32)), constant("b", ints(1))]
    nodes = [node("Cast", ["rows"], ["wide"], to=FLOAT), node("MatMul", ["wide", "w"], ["y"])]
    report = lint(tmp_path, model(nodes, weights=weights), target)
    trapped = ("float32-matmul", "n_y") in found(report)
    assert trapped == (target == "Ascend310P3")
    assert not report.errors
