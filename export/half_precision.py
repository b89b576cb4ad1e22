"""A traced float32 graph rebuilt in float16, with islands of float32 where float16 would lose.

Owns which node computes in which precision, and the casts between. The rules, in this order:

- matrix products take and give float16: 310P has no other kernel on its AI Core;
- statistics, softmax, angles and transcendental functions compute in float32, and so does what
  alone feeds them;
- arithmetic computes in float32 if one of its operands is float32 already, or a constant that
  float16 cannot hold;
- what moves data moves float16, so that a float32 island ends there.

Source: hicann/docs, atlas_infer_ops_list/ops/BatchMatMulV2.md (float32 on the AI CPU only).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from onnx import NodeProto, TensorProto, helper
from torch import Tensor

from export.onnx_writer import GraphWriter, onnx_type, used_nodes

_PRODUCTS = frozenset({"MatMul", "Gemm"})
_PRECISE = frozenset(
    {
        "Softmax",
        "Pow",
        "ReduceMean",
        "ReduceSum",
        "Sqrt",
        "Reciprocal",
        "Exp",
        "Cos",
        "Sin",
        "Tanh",
        "Erf",
        "TopK",
        "LayerNormalization",
    }
)
_MOVES = frozenset(
    {
        "Reshape",
        "Transpose",
        "Slice",
        "Split",
        "Concat",
        "Expand",
        "Squeeze",
        "Unsqueeze",
        "Gather",
        "GatherElements",
    }
)
# Never pulled into an island by what they feed: they read weights or the pool.
_READS = frozenset({"Gather", "GatherElements"})
_COMPARISONS = frozenset({"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"})
_HALF_LIMITS = torch.finfo(torch.float16)


class Kind(Enum):
    """What a value of the new graph is."""

    HALF = torch.float16
    SINGLE = torch.float32
    OTHER = None


@dataclass(frozen=True, slots=True)
class Typed:
    """A value of the new graph."""

    name: str
    kind: Kind


class Rebuild:
    """Walks the old graph in order and emits the new one.

    Attributes:
        writer: The new graph.
    """

    def __init__(self, old: GraphWriter, inputs: Mapping[str, Kind]) -> None:
        self.writer = GraphWriter()
        self._old = old
        self._values = {name: Typed(name, kind) for name, kind in inputs.items()}
        self._producers: dict[str, NodeProto] = {}
        self._precise: set[str] = set()

    def run(self, outputs: Mapping[str, Kind], rules: Mapping[str, Rule]) -> list[str]:
        """Rebuild all that the outputs depend on.

        Args:
            outputs: Value names of the old graph, and what they have to be.
            rules: Operator types that are emitted by a rule of their own.

        Returns:
            The outputs' names in the new graph.
        """
        nodes = used_nodes(self._old.nodes, set(outputs))
        self._precise = self._feeding_precise(nodes, outputs)
        self._producers = {name: node for node in nodes for name in node.output}
        for node in nodes:
            self.writer.scope = node.name.rpartition("/")[0]
            rule = rules.get(node.op_type)
            results = rule(self, node) if rule else self.emit(node)
            self._values.update(zip(node.output, results, strict=False))
        self.writer.scope = ""
        return [self.value(name, kind) for name, kind in outputs.items()]

    def value(self, name: str, wanted: Kind) -> str:
        """An old value's name in the new graph, cast to `wanted` unless that is OTHER."""
        constant = self._old.constant_tensor(name)
        if constant is not None:
            return self._constant(constant, name, wanted)
        found = self._values[name]
        if wanted in (Kind.OTHER, found.kind):
            return found.name
        assert found.kind is not Kind.OTHER, name
        return self.writer.emit("Cast", [found.name], to=onnx_type(wanted.value))

    def kind(self, name: str) -> Kind:
        """What a value is in the new graph; a constant has no kind of its own."""
        found = self._values.get(name)
        return Kind.OTHER if found is None else found.kind

    def constant_of(self, name: str) -> Tensor | None:
        """The value of a constant of the old graph."""
        return self._old.constant_tensor(name)

    def producer(self, name: str, op_type: str) -> NodeProto | None:
        """The old node behind a value, if it is of this type."""
        node = self._producers.get(name)
        return node if node is not None and node.op_type == op_type else None

    def sizes(self, name: str) -> tuple[int | None, ...]:
        """An old value's sizes, None where symbolic."""
        return self._old.sizes[name]

    def _constant(self, tensor: Tensor, name: str, wanted: Kind) -> str:
        dtype = tensor.dtype
        if dtype is torch.float32 and wanted is not Kind.OTHER:
            dtype = wanted.value
        return self.writer.constant(tensor, name, dtype)

    def emit(self, node: NodeProto) -> list[Typed]:
        """The node itself, in the precision that the rules give it."""
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        wanted = self._wanted(node)
        inputs = [
            self.value(name, self._input_kind(node, i, wanted)) for i, name in enumerate(node.input)
        ]
        outputs = self.writer.emit_many(node.op_type, inputs, len(node.output), **attributes)
        kind = self._output_kind(node, wanted)
        return [Typed(name, kind) for name in outputs]

    def _wanted(self, node: NodeProto) -> Kind:
        """The precision that a node computes in; OTHER where it touches no floats."""
        floats = [name for name in node.input if self._is_float(name)]
        if node.op_type == "Cast":
            # Positions pass float16's exact integers.
            is_float = node.attribute[0].i == TensorProto.FLOAT
            return Kind.SINGLE if is_float else Kind.OTHER
        if not floats or node.op_type == "Shape":
            return Kind.OTHER
        if node.op_type in _PRODUCTS:
            return Kind.HALF
        if node.op_type in _PRECISE or node.name in self._precise:
            return Kind.SINGLE
        if node.op_type in _MOVES:
            return Kind.HALF
        needs_single = any(self.kind(n) is Kind.SINGLE or self._is_beyond_half(n) for n in floats)
        return Kind.SINGLE if needs_single else Kind.HALF

    def _input_kind(self, node: NodeProto, index: int, wanted: Kind) -> Kind:
        return wanted if self._is_float(node.input[index]) else Kind.OTHER

    def _output_kind(self, node: NodeProto, wanted: Kind) -> Kind:
        return Kind.OTHER if node.op_type in _COMPARISONS else wanted

    def _is_float(self, name: str) -> bool:
        constant = self._old.constant_tensor(name)
        if constant is not None:
            return constant.dtype is torch.float32
        return self._values[name].kind is not Kind.OTHER

    def _is_beyond_half(self, name: str) -> bool:
        constant = self._old.constant_tensor(name)
        if constant is None or constant.numel() != 1:
            return False
        size = abs(float(constant))
        return size > _HALF_LIMITS.max or 0 < size < _HALF_LIMITS.tiny

    def _feeding_precise(self, nodes: Sequence[NodeProto], outputs: Mapping[str, Kind]) -> set[str]:
        """Names of arithmetic and moving nodes whose every use is a float32 one."""
        is_precise_use: dict[str, list[bool]] = defaultdict(list)
        for name, kind in outputs.items():
            is_precise_use[name].append(kind is Kind.SINGLE)
        feeding = set()
        for node in reversed(nodes):
            uses = [use for name in node.output for use in is_precise_use[name]]
            bound = node.op_type in _PRODUCTS | _PRECISE | _READS
            if not bound and uses and all(uses):
                feeding.add(node.name)
            precise = node.op_type in _PRECISE or node.name in feeding
            for name in node.input:
                is_precise_use[name].append(precise)
        return feeding


Rule = Callable[[Rebuild, NodeProto], list[Typed]]
