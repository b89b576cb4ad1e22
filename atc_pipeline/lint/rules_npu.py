"""Rules on the npu operators' limits, where shapes and types are known."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from atc_pipeline.lint.graph import GraphNode, LintGraph, attribute, type_name
from atc_pipeline.lint.report import Severity
from atc_pipeline.lint.rule import Fault, Rule
from atc_pipeline.soc import ASCEND_310B

_OPS_LIST = "hicann/docs atlas_infer_ops_list/ops"
_NORMS = frozenset({"NPURmsNorm", "NPUAddRmsNorm"})
_ITEM_BYTES: dict[int, int] = {TensorProto.FLOAT16: 2, TensorProto.FLOAT: 4}
_MIN_NORM_BYTES = 32
_ROTARY_MULTIPLE = 64
# Batch and heads have to stay below.
_ROTARY_LIMIT = 1000
_MAX_ATTENTION_BATCH = 128
_MAX_ATTENTION_TOKENS = 65536


def _nodes(graph: LintGraph, names: frozenset[str]) -> Iterator[GraphNode]:
    return (placed for placed in graph.nodes if placed.node.op_type in names and placed.node.input)


def _norm_rows(graph: LintGraph) -> Iterator[Fault]:
    for placed in _nodes(graph, _NORMS):
        name = placed.node.input[0]
        sizes, item_bytes = graph.sizes(name), _ITEM_BYTES.get(graph.dtype(name))
        last = sizes[-1] if sizes else None
        if last is not None and item_bytes is not None and last * item_bytes < _MIN_NORM_BYTES:
            yield Fault(
                placed,
                f"its last dimension of {last} takes {last * item_bytes} bytes, wanted at least "
                f"{_MIN_NORM_BYTES}",
            )


def _operand_types(graph: LintGraph) -> Iterator[Fault]:
    for placed in _nodes(graph, _NORMS | {"NPURotaryMul"}):
        for name in placed.node.input:
            dtype = graph.dtype(name)
            if dtype and dtype not in _ITEM_BYTES:
                yield Fault(placed, f"{name!r} has {type_name(dtype)}, wanted float16 or float32")
                break


def _rotary_shapes(graph: LintGraph) -> Iterator[Fault]:
    for placed in _nodes(graph, frozenset({"NPURotaryMul"})):
        sizes = graph.sizes(placed.node.input[0])
        reason = _rotary_misfit(sizes) if sizes is not None else ""
        if reason:
            yield Fault(placed, reason)


def _rotary_misfit(sizes: tuple[int | None, ...]) -> str:
    """Why a rotary operand's shape is not taken; empty when it is, or when it is unknown."""
    if len(sizes) != 4:
        return f"x has {len(sizes)} dimensions, wanted 4 (BNSD, BSND or SBND)"
    if sizes[3] is not None and sizes[3] % _ROTARY_MULTIPLE:
        return f"its head size is {sizes[3]}, wanted a multiple of {_ROTARY_MULTIPLE}"
    # Batch is the first dimension or, in SBND, the second; one beyond the limit may be tokens,
    # so only two of the three prove the fault.
    beyond = [size for size in sizes[:3] if size is not None and size >= _ROTARY_LIMIT]
    if len(beyond) > 1 or (sizes[0] is not None and sizes[0] >= _ROTARY_LIMIT):
        return f"batch and heads must be below {_ROTARY_LIMIT}, x is {_shape_text(sizes)}"
    return ""


def _shape_text(sizes: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in sizes) + "]"


def _incremental_attention(graph: LintGraph) -> Iterator[Fault]:
    for placed in _nodes(graph, frozenset({"NPUIncreFlashAttention"})):
        yield Fault(
            placed,
            "its plugin passes neither grouped heads nor a block table on, and numbers keys and "
            "values from 1",
        )


def _prompt_attention(graph: LintGraph) -> Iterator[Fault]:
    for placed in _nodes(graph, frozenset({"NPUPromptFlashAttention"})):
        reason = _prompt_misfit(graph, placed)
        if reason:
            yield Fault(placed, reason)


def _prompt_misfit(graph: LintGraph, placed: GraphNode) -> str:
    inputs = placed.node.input
    layout = attribute(placed.node, "input_layout")
    axis = {b"BSH": 1, b"BSND": 1, b"BNSD": 2}.get(layout.s if layout is not None else b"")
    query = graph.sizes(inputs[0])
    key = graph.sizes(inputs[1]) if len(inputs) > 1 else None
    if len(inputs) > 3 and inputs[3]:
        return "it has pse_shift, which the 310P refuses"
    if axis is None or query is None or key is None or axis >= min(len(query), len(key)):
        return ""
    batch, new, past = query[0], query[axis], key[axis]
    if batch is not None and batch > _MAX_ATTENTION_BATCH:
        return f"its batch is {batch}, the 310P takes at most {_MAX_ATTENTION_BATCH}"
    if max(new or 0, past or 0) > _MAX_ATTENTION_TOKENS:
        return f"its lengths are {new} and {past}, at most {_MAX_ATTENTION_TOKENS} are taken"
    masked = len(inputs) > 4 and bool(inputs[4])
    if masked and new is not None and past is not None and (new != past or new % 16):
        return (
            f"it has a mask and the lengths {new} and {past}; the 310P takes a mask with two "
            f"equal lengths that are multiples of 16"
        )
    return ""


def _on_310b(graph: LintGraph) -> Iterator[Fault]:
    for placed in graph.nodes:
        if placed.node.domain == "npu":
            yield Fault(placed, "the operators' pages were read for the 310P, not for the 310B")


RULES = (
    Rule(
        "npu-norm-row",
        Severity.ERROR,
        "write this norm in plain operators",
        f"{_OPS_LIST}/RmsNorm.md",
        _norm_rows,
    ),
    Rule(
        "npu-operand-type",
        Severity.ERROR,
        "cast the operand",
        f"{_OPS_LIST}/RmsNorm.md, RotaryMul.md",
        _operand_types,
    ),
    Rule(
        "npu-rotary-shape",
        Severity.ERROR,
        "write this rotation in plain operators, or keep within the limits",
        f"{_OPS_LIST}/RotaryMul.md",
        _rotary_shapes,
    ),
    Rule(
        "npu-incre-attention",
        Severity.ERROR,
        "gather the blocks and write attention in plain operators",
        "ops-transformer attention/incre_flash_attention/framework/"
        "npu_incre_flash_attention_onnx_plugin.cpp",
        _incremental_attention,
    ),
    Rule(
        "npu-prompt-attention",
        Severity.ERROR,
        "write attention in plain operators",
        "ops-transformer attention/prompt_flash_attention/op_host/"
        "prompt_flash_attention_tiling.cpp",
        _prompt_attention,
    ),
    Rule(
        "npu-on-310b",
        Severity.WARNING,
        "write it in plain operators, as a build for the 310B does, or prove it on the board with "
        "export-om doctor --probe --target CHIP",
        _OPS_LIST,
        _on_310b,
        frozenset({ASCEND_310B}),
    ),
)
