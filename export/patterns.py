"""Patterns of the traced graph that stand for one thing: an RMS norm, a rotary embedding.

Owns finding them; what stands in their place is each profile's lowering. Each pattern is exact
about what it matches; what does not match stays as it is.
"""

from __future__ import annotations

from onnx import NodeProto

from export.onnx_writer import GraphWriter


class Pattern:
    """Looks backwards from a node through its producers."""

    def __init__(self, writer: GraphWriter) -> None:
        self.writer = writer
        self._producers = {name: node for node in writer.nodes for name in node.output}

    def rewrite(self) -> None:
        """Replace every match, keeping the name of its output."""
        nodes: list[NodeProto] = []
        for node in self.writer.nodes:
            nodes.extend(self.replacement(node) or [node])
        self.writer.nodes = nodes

    def replacement(self, node: NodeProto) -> list[NodeProto] | None:
        """The nodes instead of a match's last node; None where nothing matches."""
        raise NotImplementedError

    def producer(self, name: str, op_type: str) -> NodeProto | None:
        """The node behind a value, if it is of this type."""
        node = self._producers.get(name)
        return node if node is not None and node.op_type == op_type else None

    def scalar(self, name: str) -> float | None:
        """A constant of one element."""
        tensor = self.writer.constant_tensor(name)
        return float(tensor) if tensor is not None and tensor.numel() == 1 else None

    def split_operands(self, node: NodeProto, op_type: str) -> tuple[NodeProto, str] | None:
        """Of two operands, the one of the given type and the other's name."""
        for one, other in (tuple(node.input), tuple(reversed(node.input))):
            found = self.producer(one, op_type)
            if found is not None:
                return found, other
        return None


class RmsNorms(Pattern):
    """weight * (x * 1 / sqrt(mean(x ** 2) + eps))."""

    def norm(self, node: NodeProto, x: str, weight: str, eps: float) -> list[NodeProto]:
        """What stands for a norm over the last axis; its last output is that of `node`."""
        raise NotImplementedError

    def replacement(self, node: NodeProto) -> list[NodeProto] | None:
        """As `Pattern` has it."""
        if node.op_type != "Mul":
            return None
        outer = self.split_operands(node, "Mul")
        if outer is None:
            return None
        product, weight = outer
        tensor = self.writer.constant_tensor(weight)
        inner = self.split_operands(product, "Reciprocal")
        if tensor is None or tensor.ndim != 1 or inner is None:
            return None
        reciprocal, x = inner
        eps = self._epsilon(reciprocal, x)
        return None if eps is None else self.norm(node, x, weight, eps)

    def _epsilon(self, reciprocal: NodeProto, x: str) -> float | None:
        """The eps of 1 / sqrt(mean(x ** 2, -1) + eps); None for anything else."""
        root = self.producer(reciprocal.input[0], "Sqrt")
        total = root and self.producer(root.input[0], "Add")
        found = total and self.split_operands(total, "ReduceMean")
        if not found:
            return None
        mean, eps = found
        power = self.producer(mean.input[0], "Pow")
        if power is None or power.input[0] != x or self.scalar(power.input[1]) != 2:
            return None
        return self.scalar(eps) if self.scalar(mean.input[1]) == -1 else None


class Rotaries(Pattern):
    """x * cos + concat(-x[half:], x[:half]) * sin, over the whole head."""

    def rotary(
        self, node: NodeProto, x: str, tables: tuple[str, str], half: int
    ) -> list[NodeProto] | None:
        """What stands for a match.

        Args:
            tables: The values cos and sin.
            half: Half of the head.
        """
        raise NotImplementedError

    def replacement(self, node: NodeProto) -> list[NodeProto] | None:
        """As `Pattern` has it."""
        if node.op_type != "Add":
            return None
        for straight, turned in (tuple(node.input), tuple(reversed(node.input))):
            first, second = self.producer(straight, "Mul"), self.producer(turned, "Mul")
            halves = second and self.split_operands(second, "Concat")
            if first is None or not halves:
                continue
            concat, sin = halves
            x, half = self._rotated(concat)
            cos = next((n for n in first.input if n != x), None)
            if x in first.input and cos is not None:
                return self.rotary(node, x, (cos, sin), half)
        return None

    def _rotated(self, concat: NodeProto) -> tuple[str, int]:
        """X and half the head of concat(-x[half:], x[:half]); an empty name for other things."""
        negated = self.producer(concat.input[0], "Neg")
        upper = negated and self.producer(negated.input[0], "Slice")
        lower = self.producer(concat.input[1], "Slice")
        if len(concat.input) != 2 or not upper or not lower or upper.input[0] != lower.input[0]:
            return "", 0
        start, end = self.scalar(upper.input[1]), self.scalar(lower.input[2])
        if start is None or start != end or self.scalar(lower.input[1]) != 0:
            return "", 0
        return upper.input[0], int(start)
