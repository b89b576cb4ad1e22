"""Shapes of a gear, against what ONNX Runtime computes."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

from atc_pipeline.simatc.memory_plan import peak_bytes
from atc_pipeline.simatc.node_types import ValueType, infer_types
from export.npu_functions import expand_npu_ops
from tests.atc_pipeline.simatc.graphs import HALF, make_model, value

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


def check(model: ModelProto, shapes: dict[str, tuple[int, ...]]) -> dict[str, ValueType]:
    """Every known type is what a run gives; returns them all."""
    types = dict(infer_types(model, shapes))
    session = ort.InferenceSession(expand_npu_ops(model).SerializeToString())
    feeds = {
        i.name: np.ones(shapes[i.name], {"tensor(float16)": np.float16}.get(i.type, np.float32))
        for i in session.get_inputs()
    }
    for output, array in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        assert types[output.name].dims == array.shape
        assert types[output.name].size_bytes == array.nbytes
    return types


@pytest.mark.parametrize(
    ("attributes", "shapes"),
    [
        ({}, {"a": (2, 3, 4), "b": (4, 5)}),
        ({"transB": 1}, {"a": (2, 3, 4), "b": (2, 5, 4)}),
        ({"transA": 1}, {"a": (2, 4, 3), "b": (2, 4, 5)}),
        ({"transA": 1, "transB": 1}, {"a": (4, 3), "b": (5, 4)}),
        ({"transA": 0, "transB": 0}, {"a": (3, 4), "b": (4, 5)}),
    ],
)
def test_products_with_turned_operands(
    attributes: dict[str, int], shapes: dict[str, tuple[int, ...]]
) -> None:
    rank = [len(shapes["a"]), len(shapes["b"])]
    model = make_model(
        [node("MatMul", ["a", "b"], ["y"], "mm", **attributes)],
        [value("a", HALF, [f"a{i}" for i in range(rank[0])]),
         value("b", HALF, [f"b{i}" for i in range(rank[1])])],
        [value("y", HALF, [f"y{i}" for i in range(max(rank))])],
    )  # fmt: skip
    check(model, shapes)


def test_npu_operators_keep_their_input() -> None:
    model = make_model(
        [
            node("NPURmsNorm", ["x", "gamma"], ["n", "rstd"], "norm", domain="npu"),
            node("NPURotaryMul", ["n", "cos", "sin"], ["y"], "rope", domain="npu"),
        ],
        [value("x", HALF, ["b", 2, 3, 64]), value("gamma", HALF, [64])]
        + [value(name, HALF, ["b", 1, 3, 64]) for name in ("cos", "sin")],
        [value("y", HALF, ["b", 2, 3, 64]), value("rstd", FLOAT, ["b", 2, 3, 1])],
    )
    shapes = {"x": (5, 2, 3, 64), "gamma": (64,), "cos": (5, 1, 3, 64), "sin": (5, 1, 3, 64)}
    check(model, shapes)


def shape_chain() -> list[NodeProto]:
    """A Reshape to [batch * tokens, 2, -1] and a Range, by arithmetic on the input's shape."""
    return [
        node("Shape", ["x"], ["dims"], "dims"),
        node("Shape", ["x"], ["front"], "front", start=0, end=2),
        node("ReduceProd", ["front"], ["rows"], "rows", keepdims=1),
        node("Concat", ["rows", "two_and_rest"], ["wanted"], "wanted", axis=0),
        node("Reshape", ["x", "wanted"], ["y"], "y"),
        node("Gather", ["dims", "one"], ["tokens"], "tokens", axis=0),
        node("Squeeze", ["tokens"], ["limit"], "limit"),
        node("Range", ["zero", "limit", "step"], ["positions"], "positions"),
    ]


def test_shapes_that_are_computed_from_shapes() -> None:
    model = make_model(
        shape_chain(),
        [value("x", FLOAT, ["batch", "tokens", 8])],
        [value("y", FLOAT, ["new", 2, 4]), value("positions", INT64, ["tokens"])],
        {
            "two_and_rest": np.array([2, -1]),
            "one": np.array([1]),
            "zero": np.array(0),
            "step": np.array(1),
        },
    )
    types = check(model, {"x": (3, 5, 8)})
    assert types["y"].dims == (15, 2, 4)
    assert types["positions"].dims == (5,)


def test_memory_counts_what_is_alive_at_once() -> None:
    nodes = [node("Relu", [a], [b], b) for a, b in (("x", "a"), ("a", "b"), ("b", "y"))]
    model = make_model(nodes, [value("x", FLOAT, [256])], [value("y", FLOAT, [256])])
    assert peak_bytes(model.graph, infer_types(model, {})) == 2 * 1024
    nodes.append(node("Add", ["y", "a"], ["z"], "z"))
    model = make_model(nodes, [value("x", FLOAT, [256])], [value("z", FLOAT, [256])])
    assert peak_bytes(model.graph, infer_types(model, {})) == 3 * 1024
