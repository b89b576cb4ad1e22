"""Rules on attributes: forms that the parser does not read, and values that plugins ignore."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import AttributeProto, NodeProto

from atc_pipeline.lint.graph import DEFAULT_DOMAIN, LintGraph, attribute
from atc_pipeline.lint.report import Severity
from atc_pipeline.lint.rule import Fault, Rule
from atc_pipeline.op_table import load_operator_table

_RMS_NORMS = frozenset({"NPURmsNorm", "NPUAddRmsNorm"})
_RMS_EPSILON = 1e-6
# Before this opset Softmax flattens its input into two dimensions.
_PLAIN_SOFTMAX_OPSET = 13


def _constant_forms(graph: LintGraph) -> Iterator[Fault]:
    for placed in graph.nodes:
        node = placed.node
        if node.op_type != "Constant" or node.domain not in ("", DEFAULT_DOMAIN):
            continue
        value = attribute(node, "value")
        if value is None or value.type != AttributeProto.TENSOR:
            given = ", ".join(a.name for a in node.attribute) or "none"
            yield Fault(placed, f"the parser reads its attribute value alone, given: {given}")


def _missing_attributes(graph: LintGraph) -> Iterator[Fault]:
    for placed in graph.nodes:
        operator = load_operator_table().find(placed.node.domain, placed.node.op_type)
        for name in operator.attributes_required if operator is not None else ():
            if attribute(placed.node, name) is None:
                yield Fault(placed, f"its plugin wants the attribute {name}, which is absent")


def _epsilons(graph: LintGraph) -> Iterator[Fault]:
    for placed in graph.nodes:
        epsilon = attribute(placed.node, "epsilon")
        if placed.node.op_type not in _RMS_NORMS or epsilon is None:
            continue
        if abs(epsilon.f / _RMS_EPSILON - 1) > 1e-3:
            yield Fault(
                placed, f"epsilon is {epsilon.f:g}, the plugin computes with 1e-06 all the same"
            )


def _reductions(graph: LintGraph) -> Iterator[Fault]:
    for placed in graph.nodes:
        reduction = attribute(placed.node, "reduction")
        if placed.node.op_type == "ScatterND" and reduction is not None:
            kind = reduction.s.decode(errors="replace")
            if kind != "none":
                yield Fault(
                    placed,
                    f"reduction is {kind!r}; of its two plugins one ignores it and the other "
                    f"refuses mul, and which one loads first is open",
                )


def _batch_dims(graph: LintGraph) -> Iterator[Fault]:
    for placed in graph.nodes:
        if placed.node.op_type == "GatherND" and (count := _integer(placed.node, "batch_dims")):
            yield Fault(placed, f"batch_dims is {count}, wanted 0")


def _old_softmax(graph: LintGraph) -> Iterator[Fault]:
    opset = graph.opsets.get(DEFAULT_DOMAIN, _PLAIN_SOFTMAX_OPSET)
    for placed in graph.nodes:
        node = placed.node
        if node.op_type not in ("Softmax", "LogSoftmax") or opset >= _PLAIN_SOFTMAX_OPSET:
            continue
        axis = _integer(node, "axis") if attribute(node, "axis") is not None else 1
        shape = graph.value(node.input[0]).shape if node.input else None
        is_last = axis == -1 or (shape is not None and axis == len(shape) - 1)
        if not is_last:
            yield Fault(
                placed, f"at opset {opset} it flattens from axis {axis} on; ATC takes one axis"
            )


def _integer(node: NodeProto, name: str) -> int:
    found = attribute(node, name)
    return found.i if found is not None else 0


RULES = (
    Rule(
        "constant-form",
        Severity.ERROR,
        "give Constant a tensor in the attribute value, or make it an initializer",
        "hicann/ge parser/parser/onnx/onnx_constant_parser.cc",
        _constant_forms,
    ),
    Rule(
        "missing-attribute",
        Severity.ERROR,
        "set the attribute",
        "hicann/ops-nn, ops-math and ops-transformer, framework/*_onnx_plugin.cpp",
        _missing_attributes,
    ),
    Rule(
        "ignored-epsilon",
        Severity.ERROR,
        "scale the input by sqrt(1e-6 / epsilon), which is the same in real arithmetic, or write "
        "the norm in plain operators",
        "hicann/ops-nn norm/rms_norm/framework/npu_rms_norm_onnx_plugin.cpp",
        _epsilons,
    ),
    Rule(
        "ignored-reduction",
        Severity.ERROR,
        "combine the values before the ScatterND and scatter without reduction",
        "hicann/ops-nn common/src/framework/scatter_nd_onnx_plugin.cpp; hicann/ops-math "
        "common/src/framework/similar_opp_onnx_plugin.cpp",
        _reductions,
    ),
    Rule(
        "gathernd-batch-dims",
        Severity.ERROR,
        "write the batch index into the indices",
        "hicann/ops-nn index/gather_nd/framework/gather_nd_onnx_plugin.cpp",
        _batch_dims,
    ),
    Rule(
        "flattening-softmax",
        Severity.ERROR,
        "export with opset 13 or later",
        "hicann/ops-nn activation/softmax_v2/framework/softmax_onnx_plugin.cpp",
        _old_softmax,
    ),
)
