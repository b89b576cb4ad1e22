"""The operators that would leave the AI Core, for the list an OM carries.

Owns the translation of the lint's findings to the device's names.
"""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto

from atc_pipeline.lint import rules_engine
from atc_pipeline.lint.graph import LintGraph
from atc_pipeline.op_table import load_operator_table
from atc_pipeline.soc import find_soc
from omruntime.errors import ConfigError

_RULE = "ai-cpu"


def ai_cpu_operators(model: ModelProto, path: Path, soc_version: str) -> tuple[str, ...]:
    """Device operators on the AI CPU, sorted; empty for chips whose engines are not known."""
    try:
        profile = find_soc(soc_version).profile
    except ConfigError:
        return ()
    graph = LintGraph(model, path)
    (rule,) = (rule for rule in rules_engine.RULES if rule.rule_id == _RULE)
    op_types = {finding.op_type for finding in rule.findings(graph, profile)}
    found = {op_type: load_operator_table().find("", op_type) for op_type in op_types}
    return tuple(sorted({op.ascend_ops[0] for op in found.values() if op and op.ascend_ops}))
