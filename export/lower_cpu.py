"""Lowering for the `cpu` profile: patterns of the traced graph -> kernels of ONNX Runtime.

The gain is in the number of nodes: at one row, a decode step spends as long between nodes as in the
small ones.

    RMS norm, 7 nodes         SimplifiedLayerNormalization
    rotary, 7 nodes           RotaryEmbedding
    products of one input     one product over joined weights, then Split

Source: onnxruntime 1.32, docs/ContribOperators.md.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from onnx import NodeProto, helper
from torch import Tensor

from export.onnx_writer import GraphWriter
from export.patterns import RmsNorms, Rotaries

_CONTRIB = "com.microsoft"


def lower_cpu(writer: GraphWriter) -> None:
    """Rewrite the writer's nodes in place; nodes left without use are dropped when saving."""
    _Norms(writer).rewrite()
    _Rotary(writer).rewrite()
    _join_products(writer)


class _Norms(RmsNorms):
    def norm(self, node: NodeProto, x: str, weight: str, eps: float) -> list[NodeProto]:
        return [
            helper.make_node(
                "SimplifiedLayerNormalization",
                [x, weight],
                list(node.output),
                name=f"{node.name}.norm",
                axis=-1,
                epsilon=eps,
                stash_type=1,
            )
        ]


@dataclass(frozen=True, slots=True)
class _Angles:
    """cos or sin over two equal halves: function(concat(half, half)) * factor."""

    half: str
    factor: str | None
    width: int


class _Rotary(Rotaries):
    def rotary(
        self, node: NodeProto, x: str, tables: tuple[str, str], half: int
    ) -> list[NodeProto] | None:
        cos, sin = self._angles(tables[0], "Cos"), self._angles(tables[1], "Sin")
        if cos is None or sin is None or not cos.width == sin.width == half:
            return None
        return self._nodes(node, x, cos, sin)

    def _angles(self, name: str, function: str) -> _Angles | None:
        reshape = self.producer(name, "Reshape")
        inner = reshape.input[0] if reshape else name
        factor: str | None = None
        scaled = self.producer(inner, "Mul")
        if scaled is not None:
            found = self.split_operands(scaled, function)
            if found is None or self.scalar(found[1]) is None:
                return None
            value, factor = found
        else:
            direct = self.producer(inner, function)
            if direct is None:
                return None
            value = direct
        concat = self.producer(value.input[0], "Concat")
        if concat is None or len(set(concat.input)) != 1 or len(concat.input) != 2:
            return None
        return self._with_width(concat.input[0], factor)

    def _with_width(self, half: str, factor: str | None) -> _Angles | None:
        product = self.producer(half, "Mul")
        for name in product.input if product else ():
            frequencies = self.writer.constant_tensor(name)
            if frequencies is not None and frequencies.ndim > 0:
                return _Angles(half, factor, frequencies.shape[-1])
        return None

    def _nodes(self, node: NodeProto, x: str, cos: _Angles, sin: _Angles) -> list[NodeProto]:
        before = len(self.writer.nodes)
        tables = [self._table(cos, "Cos"), self._table(sin, "Sin")]
        ids = self._row_ids()
        # What `emit` added belongs in front of this node.
        added = self.writer.nodes[before:]
        del self.writer.nodes[before:]
        rotary = helper.make_node(
            "RotaryEmbedding",
            [x, ids, *tables],
            list(node.output),
            name=f"{node.name}.rotary",
            domain=_CONTRIB,
        )
        return [*added, rotary]

    def _table(self, angles: _Angles, function: str) -> str:
        """The step's own table of angles, a row for each new token."""
        self.writer.scope = "rotary"
        value = self.writer.emit(function, [angles.half])
        if angles.factor is not None:
            value = self.writer.emit("Mul", [value, angles.factor])
        return self.writer.emit("Reshape", [value, self.writer.ints([-1, angles.width])])

    def _row_ids(self) -> str:
        """Each new token's row in the table: 0 .. batch * tokens - 1, int64 [batch, tokens]."""
        emit, shape = self.writer.emit, self.writer.emit("Shape", ["input_ids"])
        count = emit("ReduceProd", [shape], keepdims=0)
        zero, one = (self.writer.constant(torch.tensor(i), "index") for i in (0, 1))
        return emit("Reshape", [emit("Range", [zero, count, one]), shape])


def _join_products(writer: GraphWriter) -> None:
    """Make one product of those that share an input and have constant matrices.

    Decode is bound by reading weights; one long run of them is read faster than three short.
    """
    groups: dict[str, list[NodeProto]] = defaultdict(list)
    for node in writer.nodes:
        if node.op_type == "MatMul" and _matrix(writer, node) is not None:
            groups[node.input[0]].append(node)
    joined = {id(group[0]): group for group in groups.values() if len(group) > 1}
    dropped = {id(node) for group in joined.values() for node in group}
    nodes: list[NodeProto] = []
    for node in writer.nodes:
        if id(node) in joined:
            nodes.extend(_joined(writer, joined[id(node)]))
        elif id(node) not in dropped:
            nodes.append(node)
    writer.nodes = nodes


def _matrix(writer: GraphWriter, node: NodeProto) -> Tensor | None:
    tensor = writer.constant_tensor(node.input[1])
    return tensor if tensor is not None and tensor.ndim == 2 else None


def _joined(writer: GraphWriter, group: list[NodeProto]) -> list[NodeProto]:
    matrices = [writer.constant_tensor(node.input[1]) for node in group]
    whole = torch.cat([m for m in matrices if m is not None], dim=1)
    weight = writer.constant(whole, f"{group[0].input[1]}.joined")
    sizes = writer.ints([m.shape[1] for m in matrices if m is not None])
    name = f"{group[0].name}.joined"
    outputs = [output for node in group for output in node.output]
    return [
        helper.make_node("MatMul", [group[0].input[0], weight], [f"{name}:0"], name=name),
        helper.make_node("Split", [f"{name}:0", sizes], outputs, name=f"{name}.split", axis=-1),
    ]
