"""What a lint found, as data, as text and as JSON.

Owns the words of a report; which findings there are is the rules'.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from omruntime.errors import ExportError


class Severity(Enum):
    """ERROR: ATC refuses the graph, or its numbers would be wrong. WARNING: slow, or doubtful."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong in one place.

    Attributes:
        rule: The rule's id, such as `unregistered-operator`.
        node: The node's name, with the names of the nodes it lies in; else the name of the
            tensor, input or file; empty when the whole model is meant.
        op_type: The node's operator with its domain; empty when `node` is no node.
        source: The document behind the rule.
    """

    rule: str
    severity: Severity
    node: str
    op_type: str
    reason: str
    remedy: str
    source: str

    @property
    def place(self) -> str:
        """Node and operator for a message."""
        return f"{self.node} ({self.op_type})" if self.op_type else self.node or "model"


@dataclass(frozen=True, slots=True)
class LintReport:
    """All findings of one graph, errors first.

    Attributes:
        path: The ONNX file.
        target: The chip, such as `Ascend310P3`.
    """

    path: Path
    target: str
    num_nodes: int
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Those that end a build."""
        return tuple(f for f in self.findings if f.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Those that do not, unless the lint is strict."""
        return tuple(f for f in self.findings if f.severity is Severity.WARNING)

    def refused(self, strict: bool = False) -> tuple[Finding, ...]:
        """The findings that end a build; when strict, warnings too."""
        return self.findings if strict else self.errors

    def require_clean(self, strict: bool = False) -> None:
        """Refuse a graph with errors, or, when strict, with any finding.

        Raises:
            ExportError: The message has a line for each of them.
        """
        refused = self.refused(strict)
        if refused:
            lines = "\n".join(_finding_text(f) for f in refused)
            raise ExportError(f"{self.path} is not fit for ATC on {self.target}:\n{lines}")

    def to_text(self) -> str:
        """For a person: a paragraph for each finding and a line of totals."""
        lines = [_finding_text(finding) for finding in self.findings]
        totals = f"{_count(self.errors, 'error')}, {_count(self.warnings, 'warning')}"
        return "\n".join(
            [*lines, f"{self.path}: {self.num_nodes} nodes for {self.target}: {totals}"]
        )

    def to_json(self) -> str:
        """One object, for programs."""
        findings = [asdict(f) | {"severity": f.severity.value} for f in self.findings]
        plain = {
            "path": str(self.path),
            "target": self.target,
            "num_nodes": self.num_nodes,
            "num_errors": len(self.errors),
            "num_warnings": len(self.warnings),
            "findings": findings,
        }
        return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"


def _finding_text(finding: Finding) -> str:
    head = f"{finding.severity.value}: {finding.place}: {finding.reason} [{finding.rule}]"
    return f"{head}\n    do: {finding.remedy}\n    Source: {finding.source}"


def _count(findings: tuple[Finding, ...], word: str) -> str:
    return f"{len(findings)} {word}{'' if len(findings) == 1 else 's'}"
