"""Constant matrices of a graph in fewer bits, and the nodes that widen them where they are used."""

from __future__ import annotations

from collections.abc import Callable

import torch
from onnx import NodeProto, TensorProto
from torch import Tensor

from export.onnx_writer import GraphWriter
from export.weight_format import WeightFormat
from export.weight_rounding import to_int8

# Where a node takes a matrix.
_MATRIX_INPUT = {"MatMul": 1, "Gemm": 1, "Gather": 0}


class StoredMatrices:
    """Rewrites a graph under construction, once."""

    def __init__(self, writer: GraphWriter, weights: WeightFormat) -> None:
        self._writer = writer
        self._weights = weights
        # A tied head and embedding are one constant, and stay one.
        self._int8_names: dict[tuple[str, int], tuple[str, str]] = {}

    def rewrite(self) -> None:
        """Let every node that takes a constant matrix take what the format makes of it."""
        nodes: list[NodeProto] = []
        for node in self._writer.nodes:
            index = _MATRIX_INPUT.get(node.op_type)
            matrix = None if index is None else self._writer.constant_tensor(node.input[index])
            if matrix is None or matrix.ndim < 2 or matrix.dtype is not torch.float32:
                nodes.append(node)
            else:
                nodes.extend(self._over_stored(node, matrix))
        self._writer.nodes = nodes

    def _over_stored(self, node: NodeProto, matrix: Tensor) -> list[NodeProto]:
        """The node over its stored matrix, and what goes before it."""
        index = _MATRIX_INPUT[node.op_type]
        name = node.input[index]
        # Stacks of matrices, as experts have them, would need a scale for each.
        if self._weights is not WeightFormat.INT8 or matrix.ndim > 2:
            added, node.input[index] = self._emitted(lambda: self._bfloat16(name, matrix))
            return [*added, node]
        if node.op_type == "Gather":
            return self._gathered_int8(node, matrix)
        axis = 0 if _is_transposed(node) else 1
        stored = self._int8(name, matrix, axis)
        added, node.input[index] = self._emitted(
            lambda: self._writer.emit("DequantizeLinear", list(stored), axis=axis)
        )
        return [*added, node]

    def _gathered_int8(self, node: NodeProto, matrix: Tensor) -> list[NodeProto]:
        """Rows are widened after they are looked up; the table never is."""
        values, scales = self._int8(node.input[0], matrix, 0)
        writer, ids = self._writer, node.input[1]

        def emit() -> str:
            rows = writer.emit("Gather", [values, ids])
            wide = writer.emit("Cast", [rows], to=TensorProto.FLOAT)
            column = writer.emit(
                "Unsqueeze", [writer.emit("Gather", [scales, ids]), writer.ints([-1])]
            )
            return writer.emit("Mul", [wide, column])

        added, _ = self._emitted(emit)
        added[-1].output[0] = node.output[0]
        return added

    def _bfloat16(self, name: str, matrix: Tensor) -> str:
        constant = self._writer.constant(matrix, f"{name}.bfloat16", torch.bfloat16)
        return self._writer.emit("Cast", [constant], to=TensorProto.FLOAT)

    def _int8(self, name: str, matrix: Tensor, axis: int) -> tuple[str, str]:
        """The names of a matrix's values and scales."""
        if (name, axis) not in self._int8_names:
            stored = to_int8(matrix, axis)
            self._int8_names[name, axis] = (
                self._writer.constant(stored.values, f"{name}.int8"),
                self._writer.constant(stored.scales, f"{name}.scales"),
            )
        return self._int8_names[name, axis]

    def _emitted(self, emit: Callable[[], str]) -> tuple[list[NodeProto], str]:
        """The nodes that `emit` adds, taken off the end again, and the value's name."""
        before = len(self._writer.nodes)
        name = emit()
        added = self._writer.nodes[before:]
        del self._writer.nodes[before:]
        return added, name


def _is_transposed(node: NodeProto) -> bool:
    return any(a.name == "transB" and a.i for a in node.attribute)
