"""Patterns of nodes that one kernel does: products with what is added to them, gated units.

Owns the rewriting of products, embeddings and gates. Attention is `attention_pattern.py`.

    MatMul or Gemm by a constant, bias, residual     Linear
    x * sigmoid(x) * y                               SiluMul

Matrices are packed here, once, and shared by all buckets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from omruntime.device.native.graph import Array, Graph, Node
from omruntime.errors import BundleError
from omruntime.native import Matrix

LINEAR = "Linear"
SILU_MUL = "SiluMul"


def fuse(graph: Graph) -> None:
    """Rewrite the graph in place.

    Raises:
        BundleError: A product is none by a constant matrix.
    """
    _Linears(graph).rewrite()
    _add_to_linears(graph)
    _gate(graph)
    graph.drop_unused()


@dataclass(frozen=True, slots=True)
class _Weights:
    """A constant matrix as it is stored; bfloat16 as its bits."""

    values: Array
    scales: Array | None = None


class _Linears:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._producers = graph.producers()

    def rewrite(self) -> None:
        """Products and lookups over matrices as they are stored."""
        nodes: list[Node] = []
        for node in self._graph.nodes:
            if node.op in ("MatMul", "Gemm"):
                nodes.append(self._linear(node))
            elif node.op == "Gather" and self._widened(node.inputs[0]) is not None:
                nodes.extend(self._gathered(node))
            else:
                nodes.append(node)
        self._graph.nodes = nodes

    def _linear(self, node: Node) -> Node:
        weights = self._weights(node.inputs[1])
        attributes = node.attributes
        if weights is None or weights.values.ndim != 2 or attributes.get("transA", 0):
            raise BundleError(
                f"node {node.name}: the native device has no kernel for {node.op} by anything but "
                f"a constant matrix; serve this bundle with --device cpu"
            )
        if attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
            raise BundleError(f"node {node.name}: got a Gemm with factors, wanted 1")
        values = weights.values.T if attributes.get("transB", 0) else weights.values
        inputs = (node.inputs[0], *node.inputs[2:])
        packed = Matrix(values, weights.scales)
        names = {"matrix": packed, "bias": len(inputs) > 1}
        return Node(LINEAR, node.name, inputs, node.outputs, names)

    def _weights(self, name: str) -> _Weights | None:
        """A matrix out of a constant, or of the node that widens one."""
        constants = self._graph.constants
        if name in constants:
            return _Weights(constants[name])
        stored = self._widened(name)
        if stored is not None:
            return _Weights(constants[stored])
        node = self._producers.get(name)
        if node is None or node.op != "DequantizeLinear" or len(node.inputs) != 2:
            return None
        values, scales = (constants.get(each) for each in node.inputs)
        if values is None or scales is None or values.ndim != 2:
            return None
        # The scales belong to outputs, so that they multiply sums and not weights.
        return _Weights(values, np.asarray(scales, np.float32))

    def _widened(self, name: str) -> str | None:
        """The constant that a Cast widens to this value."""
        node = self._producers.get(name)
        is_wide = node is not None and node.op == "Cast" and node.attributes["to"] == 1
        if not is_wide or node is None or node.inputs[0] not in self._graph.constants:
            return None
        return node.inputs[0]

    def _gathered(self, node: Node) -> list[Node]:
        """Rows are widened after they are looked up; the table never is."""
        table = self._widened(node.inputs[0])
        assert table is not None
        rows = f"{node.outputs[0]}.stored"
        lookup = replace(node, inputs=(table, node.inputs[1]), outputs=(rows,))
        widening = Node("Cast", f"{node.name}.widened", (rows,), node.outputs, {"to": 1})
        return [lookup, widening]


def _add_to_linears(graph: Graph) -> None:
    """Let a product that is only added to something begin from that."""
    producers, users = graph.producers(), graph.users()
    for node in list(graph.nodes):
        if node.op != "Add":
            continue
        # Of two products the later one takes the other as what is added.
        for product, other in (node.inputs[::-1], node.inputs):
            linear = producers.get(product)
            if linear is None or linear.op != LINEAR or "addend" in linear.attributes:
                continue
            if len(users[product]) > 1 or product in graph.outputs:
                continue
            kind = _kind_of_addend(graph, linear, other)
            if kind is not None:
                fused = Node(
                    LINEAR,
                    linear.name,
                    (*linear.inputs, other),
                    node.outputs,
                    {**linear.attributes, kind: True},
                )
                graph.replace([linear], node, fused)
                producers.update(dict.fromkeys(fused.outputs, fused))
                break


def _kind_of_addend(graph: Graph, linear: Node, other: str) -> str | None:
    """Whether a summand is the product's bias or as large as its result; None if neither."""
    constant = graph.constants.get(other)
    if constant is None:
        return "addend" if other != linear.outputs[0] else None
    width = linear.attributes["matrix"].shape[1]
    is_bias = constant.shape == (width,) and not linear.attributes["bias"]
    return "bias" if is_bias else None


def _gate(graph: Graph) -> None:
    """X * sigmoid(x) * y in one pass."""
    producers, users = graph.producers(), graph.users()
    for node in list(graph.nodes):
        if node.op != "Mul":
            continue
        for activated, other in (node.inputs, node.inputs[::-1]):
            inner = producers.get(activated)
            gate = None if inner is None else _silu_input(inner, producers)
            if inner is None or gate is None or len(users[activated]) > 1:
                continue
            fused = Node(SILU_MUL, node.name, (gate, other), node.outputs)
            graph.replace([inner], node, fused)
            break


def _silu_input(node: Node, producers: dict[str, Node]) -> str | None:
    """x, of a node that computes x * sigmoid(x)."""
    if node.op != "Mul":
        return None
    for x, factor in (node.inputs, node.inputs[::-1]):
        sigmoid = producers.get(factor)
        if sigmoid is not None and sigmoid.op == "Sigmoid" and sigmoid.inputs[0] == x:
            return x
    return None
