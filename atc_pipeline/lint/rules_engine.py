"""Rules on where operators run: AI CPU traps, and shapes that depend on data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnx import TensorProto

from atc_pipeline.lint.graph import DEFAULT_DOMAIN, GraphNode, LintGraph, type_name
from atc_pipeline.lint.report import Severity
from atc_pipeline.lint.rule import Fault, Rule
from atc_pipeline.soc import ASCEND_310P

_OPS_LIST = "hicann/docs atlas_infer_ops_list/ops"
_FLOATS = frozenset({TensorProto.FLOAT16, TensorProto.FLOAT})
_SIGNED = frozenset({TensorProto.INT8, TensorProto.INT32, TensorProto.INT64})
_COMMON = _FLOATS | _SIGNED | {TensorProto.UINT8}


@dataclass(frozen=True, slots=True)
class _AiCore:
    """The types with which an operator runs on the AI Core of 310P.

    Attributes:
        operand: Which input's type decides.
        page: The manual page, under the list of operators.
    """

    operand: int
    dtypes: frozenset[int]
    page: str


# From the manual pages that were read; an operator that is not here is not judged.
_AI_CORE = {
    "ScatterElements": _AiCore(0, frozenset(), "ScatterElements.md"),
    "IsNaN": _AiCore(0, frozenset(), "IsNan.md"),
    "CumSum": _AiCore(0, _FLOATS | {TensorProto.INT32}, "Cumsum.md"),
    "TopK": _AiCore(0, _FLOATS, "TopKV2.md"),
    "Where": _AiCore(1, _COMMON, "SelectV2.md"),
    "Less": _AiCore(0, _COMMON, "Less.md"),
    "Range": _AiCore(0, _FLOATS | {TensorProto.INT32, TensorProto.INT64}, "Range.md"),
    "GatherND": _AiCore(0, _COMMON | {TensorProto.BOOL}, "GatherNd.md"),
    "Softmax": _AiCore(0, _FLOATS, "SoftmaxV2.md"),
    "ScatterND": _AiCore(0, _FLOATS, "ScatterNdUpdate.md"),
    "Slice": _AiCore(
        0, frozenset(TensorProto.DataType.values()) - {TensorProto.BOOL}, "StridedSliceV2.md"
    ),
}
# Operators whose output has as many elements as the data says.
_COUNTED_BY_DATA = frozenset({"NonZero", "Unique", "Compress", "NonMaxSuppression"})
# Operands that make the output's shape; all but Range, which has a rule of its own.
_SHAPE_OPERANDS = {
    "Reshape": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "ConstantOfShape": (0,),
    "Slice": (1, 2, 3, 4),
    "Pad": (1,),
    "TopK": (1,),
    "OneHot": (1,),
    "Split": (1,),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "Resize": (2, 3),
}


def _standard_nodes(graph: LintGraph) -> Iterator[GraphNode]:
    return (p for p in graph.nodes if p.node.domain in ("", DEFAULT_DOMAIN))


def _operand(placed: GraphNode, index: int) -> str:
    """The name of an input; empty when it is not given."""
    return placed.node.input[index] if index < len(placed.node.input) else ""


def _ai_cpu(graph: LintGraph) -> Iterator[Fault]:
    for placed in _standard_nodes(graph):
        known = _AI_CORE.get(placed.node.op_type)
        if known is None or all(graph.is_static(name) for name in placed.node.output):
            continue
        dtype = graph.dtype(_operand(placed, known.operand))
        if not known.dtypes:
            yield Fault(placed, f"it runs on the AI CPU, whatever its type ({known.page})")
        elif dtype and dtype not in known.dtypes:
            yield Fault(placed, f"with {type_name(dtype)} it runs on the AI CPU ({known.page})")


def _scatter_nd(graph: LintGraph) -> Iterator[Fault]:
    for placed in _standard_nodes(graph):
        if placed.node.op_type == "ScatterND":
            yield Fault(placed, "it copies its whole data input in every step")


def _ranges(graph: LintGraph) -> Iterator[Fault]:
    for placed in _standard_nodes(graph):
        if placed.node.op_type != "Range":
            continue
        moving = [name for name in placed.node.input if name and not graph.is_static(name)]
        if moving:
            yield Fault(placed, f"its limit {moving[0]!r} depends on the graph's inputs")


def _data_shapes(graph: LintGraph) -> Iterator[Fault]:
    for placed in _standard_nodes(graph):
        op_type = placed.node.op_type
        if op_type in _COUNTED_BY_DATA:
            yield Fault(placed, "its output has as many elements as the data says")
            continue
        for index in _SHAPE_OPERANDS.get(op_type, ()):
            name = _operand(placed, index)
            if name and not graph.is_static(name):
                yield Fault(placed, f"its operand {name!r} makes a shape out of the graph's inputs")
                break


def _failed_inference(graph: LintGraph) -> Iterator[Fault]:
    if graph.inference_error:
        yield Fault(
            "",
            f"types and shapes are unknown, so rules on them saw declared ones alone: "
            f"{graph.inference_error}",
        )


RULES = (
    Rule(
        "ai-cpu",
        Severity.WARNING,
        "cast to a type that the AI Core has, or express it by other operators",
        _OPS_LIST,
        _ai_cpu,
        frozenset({ASCEND_310P}),
    ),
    Rule(
        "scatter-nd",
        Severity.WARNING,
        "return the new values as an output and let the runtime write them",
        "hicann/ops-nn common/src/framework/scatter_nd_onnx_plugin.cpp",
        _scatter_nd,
    ),
    Rule(
        "data-dependent-range",
        Severity.ERROR,
        "make the limits constants or shapes; mask the part that is too much",
        "hicann/ge docs/zh/user_guides/atc_tools/CLI_options/--dynamic_dims.md",
        _ranges,
    ),
    Rule(
        "data-dependent-shape",
        Severity.ERROR,
        "make the shape a constant or a shape of another tensor; mask the part that is too much",
        "hicann/ge docs/zh/user_guides/atc_tools/CLI_options/--dynamic_dims.md",
        _data_shapes,
    ),
    Rule(
        "unknown-shapes",
        Severity.WARNING,
        "check the model with onnx.checker and export it again",
        "onnx.shape_inference",
        _failed_inference,
    ),
)
