"""Tiny ONNX graphs for the probes, in the form that the exporter writes: opset 18, all named.

Needs onnx. Each graph has one thing to show and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

_OPSET = 18
_NPU_DOMAIN = "npu"
WIDTH = 64

_Dims = Sequence[int | str]


@dataclass(frozen=True, slots=True)
class ProbeGraph:
    """A graph and the names of its inputs, in order."""

    model: onnx.ModelProto
    input_names: tuple[str, ...]


def _graph(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, _Dims]],
    output: tuple[str, int, _Dims],
    constants: dict[str, NDArray[np.generic]] | None = None,
) -> ProbeGraph:
    name, kind, dims = output
    graph = helper.make_graph(
        nodes,
        "omserve_probe",
        [helper.make_tensor_value_info(n, t, d) for n, (t, d) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, dims)],
        [numpy_helper.from_array(array, n) for n, array in (constants or {}).items()],
    )
    domains = {node.domain for node in nodes}
    opsets = [helper.make_opsetid("", _OPSET)]
    opsets += [helper.make_opsetid(_NPU_DOMAIN, 1)] if _NPU_DOMAIN in domains else []
    # IR version 8 is what opset 18 came with.
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return ProbeGraph(model, tuple(inputs))


def weights(seed: int, rows: int = WIDTH, columns: int = WIDTH) -> NDArray[np.float16]:
    """Seeded constants small enough that products stay finite."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((rows, columns)) / 8).astype(np.float16)


def matmul_chain() -> ProbeGraph:
    """Y = (x @ w0) @ w1 over `batch` rows: weights that every gear could share."""
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"], name="probe/first"),
        helper.make_node("MatMul", ["h", "w1"], ["y"], name="probe/second"),
    ]
    half = TensorProto.FLOAT16
    dims = ("batch", WIDTH)
    return _graph(
        nodes, {"x": (half, dims)}, ("y", half, dims), {"w0": weights(0), "w1": weights(1)}
    )


def gather_rows() -> ProbeGraph:
    """Rows = pool[ids]: how a step reads its paged cache; `ids` is int32."""
    nodes = [helper.make_node("Gather", ["pool", "ids"], ["rows"], name="probe/gather", axis=0)]
    half = TensorProto.FLOAT16
    return _graph(
        nodes,
        {"ids": (TensorProto.INT32, ("count",)), "pool": (half, ("slots", WIDTH))},
        ("rows", half, ("count", WIDTH)),
    )


def rms_norm() -> ProbeGraph:
    """Y = NPURmsNorm(x, gamma); the epsilon is the operator's own."""
    nodes = [
        helper.make_node(
            "NPURmsNorm", ["x", "gamma"], ["y", "rstd"], name="probe/norm", domain=_NPU_DOMAIN
        )
    ]
    half, dims = TensorProto.FLOAT16, ("batch", WIDTH)
    gamma = np.linspace(0.5, 1.5, WIDTH).astype(np.float16)
    return _graph(nodes, {"x": (half, dims)}, ("y", half, dims), {"gamma": gamma})


def rotary() -> ProbeGraph:
    """Y = NPURotaryMul(x, cos, sin), in the half mode, BNSD."""
    nodes = [
        helper.make_node(
            "NPURotaryMul", ["x", "cos", "sin"], ["y"], name="probe/rotary", domain=_NPU_DOMAIN
        )
    ]
    half, dims = TensorProto.FLOAT16, ("batch", 2, 1, WIDTH)
    angles = ("batch", 1, 1, WIDTH)
    return _graph(
        nodes, {"x": (half, dims), "cos": (half, angles), "sin": (half, angles)}, ("y", half, dims)
    )


def float32_island() -> ProbeGraph:
    """Y = half(float(x) * float(x) * 2**-20): infinite when the island runs in float16."""
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], name="probe/up", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["wide", "wide"], ["square"], name="probe/square"),
        helper.make_node("Mul", ["square", "scale"], ["small"], name="probe/scale"),
        helper.make_node("Cast", ["small"], ["y"], name="probe/down", to=TensorProto.FLOAT16),
    ]
    half, dims = TensorProto.FLOAT16, ("batch", WIDTH)
    scale = np.asarray(2.0**-20, np.float32)
    return _graph(nodes, {"x": (half, dims)}, ("y", half, dims), {"scale": scale})


def is_nan() -> ProbeGraph:
    """Y = half(IsNaN(x)): an operator whose only kernel on 310P is an AI CPU one."""
    nodes = [
        helper.make_node("IsNaN", ["x"], ["flags"], name="probe/isnan"),
        helper.make_node("Cast", ["flags"], ["y"], name="probe/cast", to=TensorProto.FLOAT16),
    ]
    half, dims = TensorProto.FLOAT16, ("batch", WIDTH)
    return _graph(nodes, {"x": (half, dims)}, ("y", half, dims))


def scatter_nd() -> ProbeGraph:
    """Y = ScatterND(x, indices, updates) in float16."""
    nodes = [
        helper.make_node(
            "ScatterND", ["x", "indices", "updates"], ["y"], name="probe/scatter", reduction="none"
        )
    ]
    half = TensorProto.FLOAT16
    return _graph(
        nodes,
        {"x": (half, ("batch", WIDTH)), "updates": (half, (1, WIDTH))},
        ("y", half, ("batch", WIDTH)),
        {"indices": np.zeros((1, 1), np.int64)},
    )
