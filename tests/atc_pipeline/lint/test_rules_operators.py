"""Each planted fault is found by its rule, at its node, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import helper

from tests.atc_pipeline.lint.graphs import FLOAT16, constant, found, ints, lint, model, node, value

OUT = [value("y", FLOAT16, "batch", "tokens", 64)]


@pytest.mark.parametrize(
    ("planted", "opsets", "words"),
    [
        (node("Gelu", ["rows"], ["y"]), {"": 18, "npu": 1}, "ai.onnx::18::Gelu"),
        (
            node("FastGelu", ["rows"], ["y"], domain="com.microsoft"),
            {"": 18, "npu": 1, "com.microsoft": 1},
            "com.microsoft::1::FastGelu",
        ),
        (
            node("NPUFusedAttentionScore", ["rows"], ["y"]),
            {"": 18, "npu": 1},
            "",
        ),
        (node("SwiGlu", ["rows"], ["y"], domain="npu"), {"": 18, "npu": 1}, "no ONNX node becomes"),
        (
            node("NPUPromptFlashAttention", ["rows"] * 3, ["y"], num_heads=1, input_layout="BSH"),
            {"": 18, "npu": 1},
            "11-16, 19",
        ),
        (node("ReduceL2", ["rows"], ["y"]), {"": 18, "npu": 1}, "8-17"),
    ],
    ids=["no-plugin", "domain", "newer", "device-only", "opset-gap", "opset-end"],
)
def test_unregistered_operator(
    tmp_path: Path, planted: object, opsets: dict[str, int], words: str
) -> None:
    report = lint(tmp_path, model([planted], [], OUT, opsets=opsets))
    if not words:
        assert found(report) == {("needs-newer-cann", "n_y")}
        return
    assert found(report) == {("unregistered-operator", "n_y")}
    assert words in report.errors[0].reason
    assert "E16002" in report.errors[0].reason


def test_an_operator_of_another_domain_is_pointed_at(tmp_path: Path) -> None:
    planted = node("NPURmsNorm", ["rows", "gamma"], ["y"], domain="custom")
    report = lint(tmp_path, model([planted], [], OUT, opsets={"": 18, "npu": 1, "custom": 1}))
    assert found(report) == {("unregistered-operator", "n_y")}
    assert "the domain ai.onnx and npu has" in report.errors[0].reason


def test_one_finding_for_an_opset_beyond_all_registrations(tmp_path: Path) -> None:
    report = lint(tmp_path, model([], opsets={"": 20, "npu": 1}))
    assert found(report) == {("opset-too-new", "")}


@pytest.mark.parametrize("missing", ["ai.onnx", "npu"])
def test_missing_opset_import(tmp_path: Path, missing: str) -> None:
    opsets = {"ai.onnx": 18, "npu": 1}
    del opsets[missing]
    report = lint(tmp_path, model([], opsets=opsets))
    node_name = {"ai.onnx": "n_rows", "npu": "n_normed"}[missing]
    assert found(report) == {("opset-import-missing", node_name)}
    assert "E19999" in report.errors[0].reason


def test_loops_are_refused_and_faults_inside_of_branches_found(tmp_path: Path) -> None:
    body = helper.make_graph([node("Gelu", ["rows"], ["inner"])], "b", [], [value("inner", 10)])
    branch = node("If", ["flag"], ["y"], then_branch=body, else_branch=body)
    flag = constant("flag", ints(1).astype(bool).reshape(()))
    report = lint(tmp_path, model([branch], [], OUT, [flag]))
    assert found(report) >= {("unregistered-operator", "n_y/n_inner")}
    loop = node("Loop", ["", "flag", "rows"], ["y"], body=body)
    report = lint(tmp_path, model([loop], [], OUT, [flag]))
    assert ("control-flow", "n_y") in found(report)
    assert ("unregistered-operator", "n_y") not in found(report)


def test_calls_of_model_functions(tmp_path: Path) -> None:
    graph = model([node("Twice", ["rows"], ["y"], domain="mine")], [], OUT)
    graph.opset_import.append(helper.make_opsetid("mine", 1))
    graph.functions.append(
        helper.make_function(
            "mine",
            "Twice",
            ["x"],
            ["z"],
            [helper.make_node("Add", ["x", "x"], ["z"])],
            [helper.make_opsetid("", 18)],
        )
    )
    assert found(lint(tmp_path, graph)) == {("model-function", "n_y")}


@pytest.mark.parametrize(
    ("target", "op_type", "domain"),
    [("Ascend310P3", "NPUMoeInitRouting", "npu"), ("Ascend310B1", "NPUDynamicQuant", "npu")],
)
def test_operators_that_one_device_lacks(
    tmp_path: Path, target: str, op_type: str, domain: str
) -> None:
    graph = model([node(op_type, ["rows"], ["y"], domain=domain)], [], OUT)
    rules = {f.rule for f in lint(tmp_path, graph, target).errors}
    other = {"Ascend310P3": "Ascend310B1", "Ascend310B1": "Ascend310P3"}[target]
    assert rules == {"absent-on-device"}
    assert not lint(tmp_path, graph, other).errors
