"""What ATC makes of a graph's nodes, spelled out for ONNX Runtime on a CPU.

Owns the reference definition of NPURmsNorm and NPURotaryMul, inside in float32 and rounded once
to the input's type, and of ATC's attributes transA and transB of a matrix product. The parity
gate and the simulator of atc both run a graph through it. Which graphs hold such nodes is decided
in `lower_ascend.py`; how a CPU computes the rest in float16 is `float16_on_cpu.py`.

Source: hicann/ops-nn, norm/rms_norm/framework/npu_rms_norm_onnx_plugin.cpp (epsilon 1e-6,
outputs y and rstd) and matmul/mat_mul_v3/framework/matmul_onnx_plugin.cpp (transA, transB);
hicann/ops-math, common/src/framework/npu_rotary_mul_onnx_plugin.cpp (half mode).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from export.float16_on_cpu import round_in_float32
from omruntime.errors import ExportError

NPU_DOMAIN = "npu"
_CONTRIB_DOMAIN = "com.microsoft"
_TRANSPOSING = frozenset({"transA", "transB"})
RMS_NORM_EPSILON = 1e-6
# From here on ReduceMean has its axes as an input, and Split wants the number of its outputs.
_AXES_INPUT_OPSET = 18


def expand_npu_ops(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model that ONNX Runtime runs on a CPU as a device would.

    It has no operators of the npu domain, and every float16 result is rounded where the node
    gives it. Weights may be in files of their own; they are neither read nor moved.

    Raises:
        ExportError: The model holds an npu operator other than the two; the message names it.
    """
    expanded = onnx.ModelProto()
    expanded.CopyFrom(model)
    graph = expanded.graph
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    constants: dict[str, TensorProto] = {}
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        if node.domain == NPU_DOMAIN or _has_transposes(node):
            nodes.extend(_Expansion(node, opset, constants).nodes())
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(constants.values())
    foreign = {node.domain for node in nodes} - {"", "ai.onnx", NPU_DOMAIN}
    known = {o.domain: o.version for o in model.opset_import} | {_CONTRIB_DOMAIN: 1}
    del expanded.opset_import[:]
    expanded.opset_import.extend(
        helper.make_opsetid(domain, version)
        for domain, version in known.items()
        if domain in foreign or domain in ("", "ai.onnx")
    )
    round_in_float32(expanded)
    return expanded


def _has_transposes(node: NodeProto) -> bool:
    """Also where they are 0: ONNX Runtime's MatMul does not know the attributes at all."""
    names = {a.name for a in node.attribute}
    return node.op_type == "MatMul" and bool(_TRANSPOSING & names)


class _Expansion:
    """The nodes in place of one; they take their names from it."""

    def __init__(self, node: NodeProto, opset: int, constants: dict[str, TensorProto]) -> None:
        self._node = node
        self._opset = opset
        self._constants = constants
        self._nodes: list[NodeProto] = []

    def nodes(self) -> list[NodeProto]:
        """All of them, in an order in which they can run."""
        known: dict[str, Callable[[], None]] = {
            "NPURmsNorm": self._rms_norm,
            "NPURotaryMul": self._rotary_mul,
            "MatMul": self._transposed_product,
        }
        expand = known.get(self._node.op_type)
        if expand is None:
            raise ExportError(
                f"node {self._node.name}: npu operator {self._node.op_type} has no reference "
                f"definition; known are NPURmsNorm and NPURotaryMul"
            )
        expand()
        return self._nodes

    def _rms_norm(self) -> None:
        """Y = x * rstd * gamma, rstd = 1 / sqrt(mean(x ** 2, -1) + 1e-6)."""
        x, gamma = self._node.input
        wide, weight = self._widened(x), self._widened(gamma)
        square = self._emit("Mul", [wide, wide])
        mean = self._mean(square)
        epsilon = self._constant("epsilon", np.float32(RMS_NORM_EPSILON))
        root = self._emit("Sqrt", [self._emit("Add", [mean, epsilon])])
        rstd = self._emit("Reciprocal", [root], self._output(1))
        product = self._emit("Mul", [self._emit("Mul", [wide, rstd]), weight])
        self._emit("CastLike", [product, x], self._output(0))

    def _rotary_mul(self) -> None:
        """Y = x * cos + concat(-x[half:], x[:half]) * sin."""
        x, cos, sin = self._node.input
        wide = self._widened(x)
        lower, upper = self._halves(wide)
        turned = self._emit("Concat", [self._emit("Neg", [upper]), lower], axis=-1)
        straight = self._emit("Mul", [wide, self._widened(cos)])
        across = self._emit("Mul", [turned, self._widened(sin)])
        self._emit("CastLike", [self._emit("Add", [straight, across]), x], self._output(0))

    def _transposed_product(self) -> None:
        """Standard MatMul has no such attributes; ONNX Runtime's own variant has."""
        node = self._node
        wide = helper.make_node("FusedMatMul", [], [], name=node.name, domain=_CONTRIB_DOMAIN)
        wide.attribute.extend(node.attribute)
        wide.input.extend(self._widened(name) for name in node.input)
        wide.output.append(f"{node.name}/product")
        self._nodes.append(wide)
        self._emit("CastLike", [wide.output[0], node.input[0]], self._output(0))

    def _widened(self, name: str) -> str:
        return self._emit("Cast", [name], to=TensorProto.FLOAT)

    def _mean(self, name: str) -> str:
        if self._opset < _AXES_INPUT_OPSET:
            return self._emit("ReduceMean", [name], axes=[-1])
        return self._emit("ReduceMean", [name, self._constant("axes", np.array([-1]))])

    def _halves(self, name: str) -> list[str]:
        outputs = [f"{self._node.name}/lower", f"{self._node.name}/upper"]
        label = f"{self._node.name}/Split"
        split = helper.make_node("Split", [name], outputs, name=label, axis=-1)
        if self._opset >= _AXES_INPUT_OPSET:
            split.attribute.append(helper.make_attribute("num_outputs", 2))
        self._nodes.append(split)
        return outputs

    def _output(self, index: int) -> str | None:
        """The node's own output, if it has so many."""
        return self._node.output[index] if index < len(self._node.output) else None

    def _emit(
        self,
        op_type: str,
        inputs: Sequence[str],
        output: str | None = None,
        **attributes: int | list[int],
    ) -> str:
        name = f"{self._node.name}/{op_type}_{len(self._nodes)}"
        output = output or f"{name}:0"
        node = helper.make_node(op_type, inputs, [output], name=name)
        node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
        self._nodes.append(node)
        return output

    def _constant(self, name: str, value: np.ndarray | np.generic) -> str:
        label = f"npu_functions/{name}"
        self._constants[label] = numpy_helper.from_array(np.asarray(value), label)
        return label
