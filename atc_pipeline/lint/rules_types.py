"""Rules on element types: what the parser and the chip take, and what would lose precision."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from atc_pipeline.lint.graph import GraphNode, LintGraph, type_name
from atc_pipeline.lint.report import Severity
from atc_pipeline.lint.rule import Fault, Rule
from atc_pipeline.soc import ASCEND_310P

_INPUT_TYPES = (TensorProto.INT32, TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.UINT8)
_TYPES = frozenset(
    {
        *_INPUT_TYPES,
        TensorProto.BFLOAT16,
        TensorProto.DOUBLE,
        TensorProto.INT8,
        TensorProto.INT16,
        TensorProto.INT64,
        TensorProto.UINT16,
        TensorProto.UINT32,
        TensorProto.UINT64,
        TensorProto.BOOL,
    }
)
# Arithmetic of the vector unit; comparisons and moves of int64 have kernels.
_ARITHMETIC = frozenset(
    {"Add", "Sub", "Mul", "Div", "Mod", "Pow", "Neg", "Abs", "Min", "Max", "Sum"}
    | {"ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceMean"}
)
_PRODUCTS = frozenset({"MatMul", "Gemm", "Einsum", "Conv"})


def _input_types(graph: LintGraph) -> Iterator[Fault]:
    for value in graph.inputs:
        dtype = value.type.tensor_type.elem_type
        if dtype not in _INPUT_TYPES:
            yield Fault(
                value.name,
                f"the graph input has {type_name(dtype)}, wanted int32, float16 or float32",
            )


def _stored_types(graph: LintGraph) -> Iterator[Fault]:
    for stored in graph.tensors():
        dtype = stored.tensor.data_type
        if dtype not in _TYPES:
            yield Fault(stored.where, f"the tensor has {type_name(dtype)}")


def _nodes_writing(graph: LintGraph, dtype: int) -> Iterator[GraphNode]:
    for placed in graph.nodes:
        if any(graph.dtype(name) == dtype for name in placed.node.output):
            yield placed


def _doubles(graph: LintGraph) -> Iterator[Fault]:
    for placed in _nodes_writing(graph, TensorProto.DOUBLE):
        if not all(graph.is_static(name) for name in placed.node.output):
            yield Fault(placed, "it computes float64, for which no AI Core kernel exists")


def _bfloat16(graph: LintGraph) -> Iterator[Fault]:
    for placed in _nodes_writing(graph, TensorProto.BFLOAT16):
        yield Fault(placed, "it writes bfloat16, which the 310P's units do not have")
    for stored in graph.tensors():
        if stored.tensor.data_type == TensorProto.BFLOAT16:
            yield Fault(stored.where, "the tensor has bfloat16, which the 310P's units do not have")


def _int64_arithmetic(graph: LintGraph) -> Iterator[Fault]:
    for placed in graph.nodes:
        node = placed.node
        if node.op_type not in _ARITHMETIC or not node.input or not node.output:
            continue
        if graph.dtype(node.output[0]) == TensorProto.INT64 and not graph.is_static(node.output[0]):
            yield Fault(
                placed,
                "it computes int64 from the graph's inputs; the vector unit has no int64 "
                "arithmetic, so it is emulated or goes to the AI CPU",
            )


def _float32_products(graph: LintGraph) -> Iterator[Fault]:
    for placed in graph.nodes:
        node = placed.node
        if node.op_type not in _PRODUCTS or not node.input:
            continue
        if graph.dtype(node.input[0]) == TensorProto.FLOAT and not graph.is_static(node.output[0]):
            yield Fault(
                placed,
                "it multiplies float32; the 310P's matrix unit has float16 alone, so with "
                "precision_mode_v2=origin it runs on the AI CPU",
            )


RULES = (
    Rule(
        "graph-input-type",
        Severity.ERROR,
        "declare the input as int32 (ids, positions, tables) or float16 and cast inside",
        "hicann/ge docs, general_restrictions.md (float32, float16 and uint8 inputs)",
        _input_types,
    ),
    Rule(
        "tensor-type",
        Severity.ERROR,
        "convert it to a type that the parser of every supported CANN knows",
        "hicann/ge parser/parser/onnx, the parser's table of data types",
        _stored_types,
    ),
    Rule(
        "float64",
        Severity.WARNING,
        "compute in float32",
        "hicann/docs atlas_infer_ops_list/ops, the operators' pages",
        _doubles,
        frozenset({ASCEND_310P}),
    ),
    Rule(
        "bfloat16",
        Severity.ERROR,
        "convert weights and computation to float16 and check their range (at most 65504)",
        "hicann/runtime src/platform/platform_config/cann/Ascend310P3.ini, AICoreintrinsicDtypeMap",
        _bfloat16,
        frozenset({ASCEND_310P}),
    ),
    Rule(
        "int64-arithmetic",
        Severity.WARNING,
        "cast the operands to int32",
        "hicann/runtime src/platform/platform_config/cann/*.ini, Intrinsic_vadd and Intrinsic_vmul",
        _int64_arithmetic,
    ),
    Rule(
        "float32-matmul",
        Severity.WARNING,
        "cast both operands to float16, and the product to float32 where precision is wanted",
        "hicann/docs atlas_infer_ops_list/ops/BatchMatMulV2.md",
        _float32_products,
        frozenset({ASCEND_310P}),
    ),
)
