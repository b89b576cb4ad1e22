"""A small clean step graph, and the ways to plant a fault into it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from atc_pipeline.lint.check import lint_model
from atc_pipeline.lint.gears import Gears
from atc_pipeline.lint.report import LintReport

FLOAT16, FLOAT, INT32, INT64 = (
    TensorProto.FLOAT16,
    TensorProto.FLOAT,
    TensorProto.INT32,
    TensorProto.INT64,
)
BOOL = TensorProto.BOOL


def node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], **more: object) -> NodeProto:
    """A node named after its first output."""
    name = str(more.pop("name", f"n_{outputs[0] if outputs else op_type}"))
    return helper.make_node(op_type, list(inputs), list(outputs), name=name, **more)


def value(name: str, dtype: int, *shape: int | str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def constant(name: str, array: np.ndarray) -> TensorProto:
    return numpy_helper.from_array(array, name)


def floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float16)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto] = (),
    outputs: Sequence[ValueInfoProto] = (),
    weights: Sequence[TensorProto] = (),
    opsets: dict[str, int] | None = None,
) -> ModelProto:
    """The clean graph around the given parts: ids -> rows -> normed -> logits.

    Values to build on: `input_ids` int32 [batch, tokens], `rows` float16 [batch, tokens, 64].
    """
    base = [
        node("Gather", ["embedding", "input_ids"], ["rows"]),
        node("NPURmsNorm", ["rows", "gamma"], ["normed", "rstd"], domain="npu"),
        node("MatMul", ["normed", "head"], ["products"]),
        node("Cast", ["products"], ["logits"], to=FLOAT),
    ]
    graph = helper.make_graph(
        [*base, *nodes],
        "step",
        [value("input_ids", INT32, "batch", "tokens"), *inputs],
        [value("logits", FLOAT, "batch", "tokens", 96), *outputs],
        [
            constant("embedding", floats(96, 64)),
            constant("gamma", floats(64)),
            constant("head", floats(64, 96)),
            *weights,
        ],
    )
    imports = [
        helper.make_opsetid("" if domain == "ai.onnx" else domain, version)
        for domain, version in (opsets or {"ai.onnx": 18, "npu": 1}).items()
    ]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def lint(
    tmp_path: Path,
    graph: ModelProto,
    target: str = "Ascend310P3",
    gears: Gears | None = None,
) -> LintReport:
    path = tmp_path / "step.onnx"
    path.write_bytes(graph.SerializeToString())
    return lint_model(path, target, gears)


def found(report: LintReport) -> set[tuple[str, str]]:
    """The rule and the place of every finding."""
    return {(finding.rule, finding.node) for finding in report.findings}


def save(graph: ModelProto, path: Path) -> None:
    onnx.save_model(graph, str(path))
