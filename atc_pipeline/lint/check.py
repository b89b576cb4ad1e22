"""`lint_model`: an ONNX file, a bundle or an emitted folder against all rules.

Owns the list of rules and the order of the findings; what a folder holds is `source.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from atc_pipeline.lint import (
    rules_attributes,
    rules_engine,
    rules_files,
    rules_gears,
    rules_names,
    rules_npu,
    rules_operators,
    rules_types,
)
from atc_pipeline.lint.gears import Gears
from atc_pipeline.lint.graph import LintGraph, read_graph
from atc_pipeline.lint.report import Finding, LintReport, Severity
from atc_pipeline.lint.rule import Rule
from atc_pipeline.lint.source import find_source
from atc_pipeline.soc import DEFAULT_SOC, find_soc

ALL_RULES: tuple[Rule, ...] = (
    *rules_operators.RULES,
    *rules_attributes.RULES,
    *rules_types.RULES,
    *rules_engine.RULES,
    *rules_names.RULES,
    *rules_files.RULES,
    *rules_npu.RULES,
    *rules_gears.RULES,
)


def lint_model(path: Path, target: str | None = None, gears: Gears | None = None) -> LintReport:
    """Check one model by all rules of the target's profile; weights are not read.

    Args:
        path: An ONNX file; or a folder with exactly one: a bundle, or what `build --emit` wrote.
        target: A chip, such as `Ascend310P3`; None takes the folder's, or else `DEFAULT_SOC`.
        gears: The buckets it will be compiled for; None takes the folder's.

    Raises:
        ConfigError: No such chip or file, or the file is no ONNX model.
        BundleError: The folder's index is damaged.
    """
    source = find_source(path)
    soc = find_soc(target or source.soc or DEFAULT_SOC)
    graph_path = source.graph
    if graph_path.is_file() and graph_path.stat().st_size > rules_files.MAX_FILE_BYTES:
        return LintReport(graph_path, soc.name, 0, (_too_large(graph_path),))
    graph = read_graph(graph_path, gears if gears is not None else source.gears)
    return lint_graph(graph, soc.name, soc.profile)


def lint_graph(graph: LintGraph, target: str, profile: str) -> LintReport:
    """Check a model that is read already."""
    findings = [finding for rule in ALL_RULES for finding in rule.findings(graph, profile)]
    return LintReport(graph.path, target, len(graph.nodes), _errors_first(findings))


def _errors_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda f: f.severity is not Severity.ERROR))


def _too_large(path: Path) -> Finding:
    return Finding(
        rule="file-too-large",
        severity=Severity.ERROR,
        node=path.name,
        op_type="",
        reason=f"the file has {path.stat().st_size} bytes, ATC takes {rules_files.MAX_FILE_BYTES} "
        f"(E13015)",
        remedy="keep the weights in a file of their own (external data)",
        source="hicann/ge parser/parser/onnx/onnx_parser.cc",
    )
