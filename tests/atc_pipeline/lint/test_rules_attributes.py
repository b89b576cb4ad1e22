"""Attribute faults, one at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto

from tests.atc_pipeline.lint.graphs import (
    FLOAT16,
    constant,
    found,
    ints,
    lint,
    model,
    node,
    value,
)


@pytest.mark.parametrize(
    "form", [{"value_int": 3}, {"value_ints": [3]}, {"value_float": 1.0}, {"value_floats": [1.0]}]
)
def test_constant_forms_that_are_not_read(tmp_path: Path, form: dict[str, object]) -> None:
    report = lint(tmp_path, model([node("Constant", [], ["c"], **form)]))
    assert found(report) == {("constant-form", "n_c")}
    assert next(iter(form)) in report.errors[0].reason


def test_a_constant_tensor_is_read(tmp_path: Path) -> None:
    tensor = constant("", ints(3))
    assert not lint(tmp_path, model([node("Constant", [], ["c"], value=tensor)])).findings


@pytest.mark.parametrize(
    ("planted", "rule"),
    [
        (
            node("NPURotaryPositionEmbedding", ["rows"] * 3, ["y"], domain="npu"),
            "missing-attribute",
        ),
        (
            node("NPURmsNorm", ["rows", "gamma"], ["y", "r"], domain="npu", epsilon=1e-5),
            "ignored-epsilon",
        ),
        (node("GatherND", ["rows", "at"], ["y"], batch_dims=1), "gathernd-batch-dims"),
    ],
)
def test_values_that_plugins_do_not_honour(tmp_path: Path, planted: NodeProto, rule: str) -> None:
    at = constant("at", np.zeros((1, 1), np.int64))
    report = lint(tmp_path, model([planted], [], [], [at]))
    assert found(report) == {(rule, "n_y")}


def test_the_epsilon_that_the_plugin_has_is_fine(tmp_path: Path) -> None:
    planted = node("NPURmsNorm", ["rows", "gamma"], ["y", "r"], domain="npu", epsilon=1e-6)
    assert not lint(tmp_path, model([planted])).findings


@pytest.mark.parametrize(("reduction", "refused"), [("none", False), ("add", True), ("mul", True)])
def test_scatter_reductions(tmp_path: Path, reduction: str, refused: bool) -> None:
    planted = node("ScatterND", ["pool", "at", "new"], ["y"], reduction=reduction)
    inputs = [
        value("pool", FLOAT16, "num_slots", 64),
        value("new", FLOAT16, 1, 64),
    ]
    at = constant("at", np.zeros((1, 1), np.int64))
    report = lint(tmp_path, model([planted], inputs, [], [at]))
    wanted = {("scatter-nd", "n_y")} | ({("ignored-reduction", "n_y")} if refused else set())
    assert found(report) == wanted


@pytest.mark.parametrize(("axis", "refused"), [(1, True), (2, False), (-1, False)])
def test_softmax_before_opset_13(tmp_path: Path, axis: int, refused: bool) -> None:
    graph = model([node("Softmax", ["rows"], ["y"], axis=axis)], opsets={"": 12, "npu": 1})
    assert found(lint(tmp_path, graph)) == ({("flattening-softmax", "n_y")} if refused else set())
