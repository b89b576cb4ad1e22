"""`lint_model`: an ONNX file, a bundle or an emitted folder against all rules.

Owns the choice of the file and the order of the findings.
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
from atc_pipeline.soc import find_soc
from omruntime.errors import ConfigError
from omruntime.manifest import MANIFEST_NAME, Manifest

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


def lint_model(path: Path, target: str, gears: Gears | None = None) -> LintReport:
    """Check one model by all rules of the target's profile; weights are not read.

    Args:
        path: An ONNX file; or a folder with exactly one: a bundle, or what `build --emit` wrote.
        target: A chip, such as `Ascend310P3`.
        gears: The buckets it will be compiled for; by default those of a bundle's manifest.

    Raises:
        ConfigError: No such chip or file, or the file is no ONNX model.
        BundleError: The folder's manifest is damaged.
    """
    profile = find_soc(target).profile
    if path.is_dir():
        gears = gears if gears is not None else _gears_of(path)
        path = _only_graph(path)
    if path.is_file() and path.stat().st_size > rules_files.MAX_FILE_BYTES:
        return LintReport(path, target, 0, (_too_large(path),))
    return lint_graph(read_graph(path, gears), target, profile)


def lint_graph(graph: LintGraph, target: str, profile: str) -> LintReport:
    """Check a model that is read already."""
    findings = [finding for rule in ALL_RULES for finding in rule.findings(graph, profile)]
    return LintReport(graph.path, target, len(graph.nodes), _errors_first(findings))


def _errors_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda f: f.severity is not Severity.ERROR))


def _gears_of(folder: Path) -> Gears | None:
    if not (folder / MANIFEST_NAME).is_file():
        return None
    return Gears.of_manifest(Manifest.read(folder))


def _only_graph(folder: Path) -> Path:
    """The one ONNX file below a folder.

    Raises:
        ConfigError: There is none, or more than one.
    """
    found = sorted(folder.rglob("*.onnx"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError(
            f"{folder} holds no ONNX file; a bundle of OMs cannot be linted any more: give the "
            f"graph, or the folder that `export-om build --emit` wrote"
        )
    names = ", ".join(str(path.relative_to(folder)) for path in found)
    raise ConfigError(f"{folder} holds several ONNX files ({names}); name the one to lint")


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
