"""Rule: one fault that a graph can have, as data with one small function.

Owns the shape of rules; the rules themselves stand in `rules_*.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from onnx import NodeProto

from atc_pipeline.lint.graph import GraphNode, LintGraph
from atc_pipeline.lint.report import Finding, Severity


@dataclass(frozen=True, slots=True)
class Fault:
    """A place where a rule is broken.

    Attributes:
        place: The node, or the name of a tensor, input or file; empty for the whole model.
        remedy: In place of the rule's own, where the place allows better advice.
    """

    place: GraphNode | str
    reason: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """What is looked for.

    Attributes:
        remedy: What to do about it.
        source: The vendor's document behind it.
        check: Yields a fault for each place; it never raises for a malformed graph.
        profiles: The profiles it holds for; empty means all.
    """

    rule_id: str
    severity: Severity
    remedy: str
    source: str
    check: Callable[[LintGraph], Iterable[Fault]]
    profiles: frozenset[str] = frozenset()

    def findings(self, graph: LintGraph, profile: str) -> Iterator[Finding]:
        """All that this rule finds in a graph."""
        if self.profiles and profile not in self.profiles:
            return
        for fault in self.check(graph):
            yield Finding(
                rule=self.rule_id,
                severity=self.severity,
                node=fault.place.where if isinstance(fault.place, GraphNode) else fault.place,
                op_type=operator_name(fault.place.node)
                if isinstance(fault.place, GraphNode)
                else "",
                reason=fault.reason,
                remedy=fault.remedy or self.remedy,
                source=self.source,
            )


def operator_name(node: NodeProto) -> str:
    """The operator with its domain, such as `npu.NPURmsNorm`; plain in the default domain."""
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
