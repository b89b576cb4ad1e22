"""Small ONNX models, and simatc run on them in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from atc_pipeline.simatc.cli import main

HALF, INT32 = TensorProto.FLOAT16, TensorProto.INT32
RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((40, 64)).astype(np.float16)
GAMMA = RNG.standard_normal(64).astype(np.float16)
# A matrix that is stored transposed, as atc's MatMul takes it with transB.
HEAD = RNG.standard_normal((40, 64)).astype(np.float16)
SHAPE = "ids:-1,-1;scale:1"
GEARS = "1,4;2,8"


def step_model() -> ModelProto:
    """y = rms_norm(table[ids]) @ head.T * scale over [batch, tokens], and the sum's shape."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"], "embed"),
        helper.make_node(
            "NPURmsNorm", ["embedded", "gamma"], ["normed", "rstd"], "norm", domain="npu"
        ),
        helper.make_node("MatMul", ["normed", "head"], ["scores"], "scores", transB=1),
        helper.make_node("Mul", ["scores", "scale"], ["y"], "scaled"),
        helper.make_node("Reshape", ["normed", "flat"], ["rows"], "rows"),
    ]
    return make_model(
        nodes,
        [value("ids", INT32, ["batch", "tokens"]), value("scale", HALF, [1])],
        [value("y", HALF, ["batch", "tokens", 40]), value("rows", HALF, ["new", 64])],
        {"table": TABLE, "gamma": GAMMA, "head": HEAD, "flat": np.array([-1, 64], np.int64)},
    )


def value(name: str, dtype: int, dims: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, dims)


def make_model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: dict[str, np.ndarray] | None = None,
) -> ModelProto:
    tensors = [numpy_helper.from_array(v, name) for name, v in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "step", list(inputs), list(outputs), tensors)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("npu", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def one_node(node: NodeProto) -> ModelProto:
    """A model of one node over a float16 input [batch, 4]."""
    shape = ["batch", 4]
    return make_model([node], [value("x", HALF, shape)], [value("y", HALF, shape)])


def save(model: ModelProto, folder: Path, are_weights_outside: bool = True) -> Path:
    path = folder / "step.onnx"
    if are_weights_outside:
        onnx.save_model(
            model, path, save_as_external_data=True, location="step.weights", size_threshold=1024
        )
    else:
        onnx.save_model(model, path)
    return path


@dataclass(frozen=True)
class Flags:
    """A command line that simatc takes, to be varied."""

    folder: Path

    def argv(self, **changes: str | None) -> list[str]:
        """With some values replaced; None leaves a flag out."""
        flags: dict[str, str | None] = {
            "framework": "5",
            "model": str(self.folder / "step.onnx"),
            "output": str(self.folder / "out"),
            "soc_version": "Ascend310P3",
            "input_format": "ND",
            "input_shape": SHAPE,
            "dynamic_dims": GEARS,
            **changes,
        }
        return [f"--{name}={text}" for name, text in flags.items() if text is not None]

    def run(self, environ: dict[str, str] | None = None, **changes: str | None) -> int:
        return main(self.argv(**changes), environ or {})
