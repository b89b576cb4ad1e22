"""Rules on which operators the parser knows: domains, opsets, functions, control flow."""

from __future__ import annotations

from collections.abc import Iterator

from atc_pipeline.lint.graph import DEFAULT_DOMAIN, GraphNode, LintGraph
from atc_pipeline.lint.report import Severity
from atc_pipeline.lint.rule import Fault, Rule, operator_name
from atc_pipeline.op_table import Operator, load_operator_table
from atc_pipeline.soc import ASCEND_310B, ASCEND_310P

_PARSER = "hicann/ge parser/parser/onnx/onnx_parser.cc"
_CONTROL_FLOW = frozenset({"Loop", "Scan"})
# Device operators behind a plugin that the profile's device does not have.
_ABSENT_310P = frozenset(
    {
        "FusedInferAttentionScore",
        "FlashAttentionScore",
        "ScatterPaKvCache",
        "MoeInitRouting",
        "MoeFinalizeRouting",
    }
)
_ABSENT_310B = frozenset({"DynamicQuant", "QuantBatchMatmulV3"})


def _domain(placed: GraphNode) -> str:
    return placed.node.domain or DEFAULT_DOMAIN


def _is_function_call(graph: LintGraph, placed: GraphNode) -> bool:
    return (_domain(placed), placed.node.op_type) in graph.functions


def _is_control_flow(placed: GraphNode) -> bool:
    return _domain(placed) == DEFAULT_DOMAIN and placed.node.op_type in _CONTROL_FLOW


def _plain_nodes(graph: LintGraph) -> Iterator[GraphNode]:
    """Those that no other rule of this file has something to say about."""
    for placed in graph.nodes:
        if not _is_function_call(graph, placed) and not _is_control_flow(placed):
            yield placed


def _unregistered(graph: LintGraph) -> Iterator[Fault]:
    table = load_operator_table()
    for placed in _plain_nodes(graph):
        domain, op_type = _domain(placed), placed.node.op_type
        opset = graph.opsets.get(domain)
        if opset is None or table.is_registered(domain, opset, op_type):
            continue
        operator = table.find(domain, op_type)
        if operator is None:
            yield Fault(placed, _unknown_reason(placed, opset))
        elif opset <= table.max_opset[domain]:
            yield Fault(placed, _opset_reason(operator, opset), _opset_remedy(operator))


def _unknown_reason(placed: GraphNode, opset: int) -> str:
    table = load_operator_table()
    domain, op_type = _domain(placed), placed.node.op_type
    reason = f"no plugin is registered for {domain}::{opset}::{op_type}, ATC would give E16002"
    elsewhere = table.other_domains(domain, op_type)
    if elsewhere:
        return f"{reason}; the domain {' and '.join(elsewhere)} has an operator of this name"
    if table.lacks_plugin(op_type):
        return f"{reason}; the device operator exists, but no ONNX node becomes it"
    return reason


def _opset_reason(operator: Operator, opset: int) -> str:
    return (
        f"{operator.op_type} is registered at the opsets {operator.opset_range} of "
        f"{operator.domain}, the model declares {opset}; ATC would give E16002"
    )


def _opset_remedy(operator: Operator) -> str:
    return f"declare an opset out of {operator.opset_range}, or express it by other operators"


def _opset_too_new(graph: LintGraph) -> Iterator[Fault]:
    for domain, highest in load_operator_table().max_opset.items():
        version = graph.opsets.get(domain, 0)
        if version > highest:
            yield Fault(
                "",
                f"the model declares version {version} of {domain}, operators are registered up "
                f"to {highest}; ATC would give E16002",
                f"export with version {highest} of {domain} (ai.onnx: opset_version=18)",
            )


def _missing_import(graph: LintGraph) -> Iterator[Fault]:
    reported: set[str] = set()
    for placed in graph.nodes:
        domain = _domain(placed)
        if domain not in graph.opsets and domain not in reported:
            reported.add(domain)
            yield Fault(
                placed, f"its domain {domain} is not in opset_import; ATC would give E19999"
            )


def _control_flow(graph: LintGraph) -> Iterator[Fault]:
    for placed in graph.nodes:
        if _is_control_flow(placed):
            yield Fault(
                placed, f"{placed.node.op_type} has no plugin, ATC would give E16002; If has one"
            )


def _function_calls(graph: LintGraph) -> Iterator[Fault]:
    for placed in graph.nodes:
        if _is_function_call(graph, placed):
            yield Fault(
                placed,
                f"{operator_name(placed.node)} is a function of the model; the parser ignores "
                f"functions, so the call gives E16002",
            )


def _absent_from(absent: frozenset[str], device: str) -> Rule:
    def check(graph: LintGraph) -> Iterator[Fault]:
        for placed in graph.nodes:
            operator = load_operator_table().find(_domain(placed), placed.node.op_type)
            for name in operator.ascend_ops if operator is not None else ():
                if name in absent:
                    yield Fault(placed, f"it becomes {name}, which {device} does not have")

    return Rule(
        rule_id="absent-on-device",
        severity=Severity.ERROR,
        remedy="express it by operators that the device has",
        source="hicann/docs atlas_infer_ops_list/README.md; hicann/ops-nn op_host definitions",
        check=check,
        profiles=frozenset({ASCEND_310P if absent is _ABSENT_310P else ASCEND_310B}),
    )


def _newer_toolkit(graph: LintGraph) -> Iterator[Fault]:
    for placed in _plain_nodes(graph):
        operator = load_operator_table().find(_domain(placed), placed.node.op_type)
        if operator is not None and operator.not_open_in and not operator.closed_before:
            releases = ", ".join(operator.not_open_in)
            yield Fault(placed, f"the sources of CANN {releases} have no plugin for it")


RULES = (
    Rule(
        "unregistered-operator",
        Severity.ERROR,
        "express it by operators that are registered",
        f"{_PARSER} (the key is <domain>::<declared opset>::<operator>)",
        _unregistered,
    ),
    Rule(
        "opset-too-new",
        Severity.ERROR,
        "export with an older opset",
        f"{_PARSER}; the registrations in hicann/ops-nn, ops-math and ops-cv",
        _opset_too_new,
    ),
    Rule(
        "opset-import-missing",
        Severity.ERROR,
        "add the domain to the model's opset_import",
        _PARSER,
        _missing_import,
    ),
    Rule(
        "control-flow",
        Severity.ERROR,
        "unroll it while exporting",
        f"{_PARSER}; hicann/ge parser/parser/onnx/subgraph_adapter",
        _control_flow,
    ),
    Rule(
        "model-function",
        Severity.ERROR,
        "inline the functions: onnx.inliner.inline_local_functions",
        f"hicann/ge graph_metadef/proto/onnx/ge_onnx.proto, {_PARSER}",
        _function_calls,
    ),
    _absent_from(_ABSENT_310P, "the Ascend 310P list of operators"),
    _absent_from(_ABSENT_310B, "Ascend 310B"),
    Rule(
        "needs-newer-cann",
        Severity.WARNING,
        "compile with a CANN that has it, or express it by other operators",
        "hicann/ops-nn and ops-math, tags v8.5.0, v9.0.0 and v9.1.0 compared",
        _newer_toolkit,
    ),
)
