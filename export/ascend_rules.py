"""What stands for norms, rotary embeddings, products and choices in an Ascend graph.

Owns one small rule an operator, and the limits under which ATC's own operators may stand in. In
which precision everything else computes is `half_precision.py`.

Source: hicann/docs, atlas_infer_ops_list/ops/RmsNorm.md (last axis of at least 32 bytes),
RotaryMul.md (4-D, head size a multiple of 64, half mode); hicann/ops-nn,
norm/rms_norm/framework/npu_rms_norm_onnx_plugin.cpp (epsilon fixed at 1e-6),
matmul/mat_mul_v3/framework/matmul_onnx_plugin.cpp (attributes transA, transB).
"""

from __future__ import annotations

import math

import torch
from onnx import NodeProto, TensorProto, helper
from torch import Tensor

from export.half_precision import Kind, Rebuild, Typed
from export.npu_functions import NPU_DOMAIN, RMS_NORM_EPSILON
from export.patterns import RmsNorms, Rotaries
from omruntime.errors import ExportError

RMS_NORM = "omserve.RmsNorm"
ROTARY = "omserve.Rotary"
_LEAST_NORM_BYTES = 32
_HALF_BYTES = 2
_ROTARY_STEP = 64


class MarkNorms(RmsNorms):
    """Each RMS norm as one node, for a rule to take up."""

    def norm(self, node: NodeProto, x: str, weight: str, eps: float) -> list[NodeProto]:
        """One marked node."""
        return [
            helper.make_node(
                RMS_NORM, [x, weight], list(node.output), name=f"{node.name}.norm", epsilon=eps
            )
        ]


class MarkRotaries(Rotaries):
    """Each rotary embedding over heads that NPURotaryMul takes as one node."""

    def rotary(
        self, node: NodeProto, x: str, tables: tuple[str, str], half: int
    ) -> list[NodeProto] | None:
        """One marked node; None where the operator does not take such heads."""
        if 2 * half % _ROTARY_STEP:
            return None
        name = f"{node.name}.rotary"
        return [helper.make_node(ROTARY, [x, *tables], list(node.output), name=name)]


def npu_rms_norm(rebuild: Rebuild, node: NodeProto) -> list[Typed]:
    """NPURmsNorm, whose epsilon is fixed, over x scaled so that the norm's own epsilon results.

    With s = sqrt(1e-6 / eps), x * s / sqrt(mean((x * s) ** 2) + 1e-6) is exactly
    x / sqrt(mean(x ** 2) + eps). s above 1 could overflow, so such norms are spelled out; what
    s below 1 pushes below float16's normal numbers is below 0.06 after the norm, and off by at
    most 3e-5 there.
    """
    x, weight = node.input
    eps, gamma = node.attribute[0].f, rebuild.constant_of(weight)
    assert gamma is not None
    scale = math.sqrt(RMS_NORM_EPSILON / eps) if eps > 0 else math.inf
    # An epsilon read as float32 is 1e-6 within its rounding.
    if scale > 1 + 1e-6 or gamma.numel() * _HALF_BYTES < _LEAST_NORM_BYTES:
        return plain_rms_norm(rebuild, node)
    name = rebuild.value(x, Kind.HALF)
    if scale < 1 - 1e-6:
        factor = rebuild.writer.constant(torch.tensor(scale), "scalar", torch.float16)
        name = rebuild.writer.emit("Mul", [name, factor])
    inputs = [name, rebuild.value(weight, Kind.HALF)]
    y, _rstd = rebuild.writer.emit_foreign(NPU_DOMAIN, "NPURmsNorm", inputs, 2)
    return [Typed(y, Kind.HALF)]


def plain_rms_norm(rebuild: Rebuild, node: NodeProto) -> list[Typed]:
    """The norm spelled out in float32."""
    emit, (x, weight) = rebuild.writer.emit, node.input
    wide = rebuild.value(x, Kind.SINGLE)
    normal = emit("Mul", [wide, _rstd(rebuild, wide, node.attribute[0].f)])
    y = emit("Mul", [normal, rebuild.value(weight, Kind.SINGLE)])
    return [_halved(rebuild, y)]


def layer_norm(rebuild: Rebuild, node: NodeProto) -> list[Typed]:
    """Spelled out in float32, in the form that ATC's LayerNormFusionPass takes up.

    The operator itself has no open plugin before the newest version.
    """
    emit = rebuild.writer.emit
    eps = next(a.f for a in node.attribute if a.name == "epsilon")
    x, weight, *bias = node.input
    wide = rebuild.value(x, Kind.SINGLE)
    centred = emit("Sub", [wide, _mean(rebuild, wide)])
    y = emit("Mul", [centred, _rstd(rebuild, centred, eps)])
    y = emit("Mul", [y, rebuild.value(weight, Kind.SINGLE)])
    for name in bias:
        y = emit("Add", [y, rebuild.value(name, Kind.SINGLE)])
    return [_halved(rebuild, y)]


def npu_rotary(rebuild: Rebuild, node: NodeProto) -> list[Typed]:
    """NPURotaryMul over [batch, heads, tokens, head_dim], tables [batch, 1, tokens, head_dim]."""
    inputs = [rebuild.value(name, Kind.HALF) for name in node.input]
    (y,) = rebuild.writer.emit_foreign(NPU_DOMAIN, "NPURotaryMul", inputs, 1)
    return [Typed(y, Kind.HALF)]


def product(rebuild: Rebuild, node: NodeProto) -> list[Typed]:
    """MatMul; a Transpose of its second operand becomes the attribute transB.

    Keys are transposed for every score otherwise, which moves all of the past once more.
    """
    turned = rebuild.producer(node.input[1], "Transpose")
    if turned is None or not _swaps_last_two(turned):
        return rebuild.emit(node)
    inputs = [rebuild.value(node.input[0], Kind.HALF), rebuild.value(turned.input[0], Kind.HALF)]
    return [Typed(rebuild.writer.emit("MatMul", inputs, transB=1), Kind.HALF)]


def int32_gather(rebuild: Rebuild, node: NodeProto) -> list[Typed]:
    """Gather by constant indices: as int32, which all of a chip's vector units count in."""
    index = rebuild.constant_of(node.input[1])
    if index is None:
        return rebuild.emit(node)
    return _gather(rebuild, node, index, node.attribute[0].i)


def gather_for_slice(rebuild: Rebuild, node: NodeProto) -> list[Typed]:
    """Slice as a Gather by constant indices, for devices without Slice."""
    start, end, axis, step = (_integer(rebuild, name) for name in node.input[1:])
    size = rebuild.sizes(node.input[0])[axis]
    if size is None:
        raise ExportError(
            f"node {node.name} slices an axis whose size is not fixed, which this device has no "
            f"operator for"
        )
    return _gather(rebuild, node, torch.arange(size)[start:end:step], axis)


def top_k(rebuild: Rebuild, node: NodeProto) -> list[Typed]:
    """The k largest of the last axis: an entry's rank is how many come before it.

    Of equal entries the first comes first, as in TopK, which itself runs on the AI CPU. The
    indices are given as float32, exact; what takes them casts them to int32.

    Source: hicann/docs, atlas_infer_ops_list/ops/TopK.md.
    """
    writer, emit = rebuild.writer, rebuild.writer.emit
    x = rebuild.value(node.input[0], Kind.SINGLE)
    size, k = rebuild.sizes(node.input[0])[-1], _integer(rebuild, node.input[1])
    assert size is not None
    column, row = (emit("Unsqueeze", [x, writer.ints([axis])]) for axis in (-1, -2))
    greater = emit("Cast", [emit("Greater", [row, column])], to=TensorProto.FLOAT)
    equal = emit("Cast", [emit("Equal", [row, column])], to=TensorProto.FLOAT)
    earlier = writer.constant(torch.ones(size, size).tril(-1), "earlier")
    before = emit("Add", [greater, emit("Mul", [equal, earlier])])
    rank = emit("ReduceSum", [before, writer.ints([-1])], keepdims=1)
    order = writer.constant(torch.arange(k, dtype=torch.float32), "order")
    chosen = emit("Cast", [emit("Equal", [rank, order])], to=TensorProto.FLOAT)
    places = writer.constant(torch.arange(size, dtype=torch.float32)[:, None], "places")
    return [
        Typed(
            emit("ReduceSum", [emit("Mul", [of, chosen]), writer.ints([-2])], keepdims=0),
            Kind.SINGLE,
        )
        for of in (column, places)
    ]


def _swaps_last_two(node: NodeProto) -> bool:
    perm = list(node.attribute[0].ints)
    return perm == [*range(len(perm) - 2), len(perm) - 1, len(perm) - 2]


def _gather(rebuild: Rebuild, node: NodeProto, index: Tensor, axis: int) -> list[Typed]:
    kind = rebuild.kind(node.input[0])
    data = rebuild.value(node.input[0], kind)
    index_name = rebuild.writer.constant(index.to(torch.int32), "index")
    return [Typed(rebuild.writer.emit("Gather", [data, index_name], axis=axis), kind)]


def _integer(rebuild: Rebuild, name: str) -> int:
    tensor = rebuild.constant_of(name)
    if tensor is None:
        raise ExportError(f"{name} is computed at run time, wanted a constant for this device")
    return int(tensor)


def _rstd(rebuild: Rebuild, wide: str, eps: float) -> str:
    emit = rebuild.writer.emit
    mean = _mean(rebuild, emit("Mul", [wide, wide]))
    epsilon = rebuild.writer.constant(torch.tensor(eps), "scalar")
    return emit("Reciprocal", [emit("Sqrt", [emit("Add", [mean, epsilon])])])


def _mean(rebuild: Rebuild, wide: str) -> str:
    return rebuild.writer.emit("ReduceMean", [wide, rebuild.writer.ints([-1])], keepdims=1)


def _halved(rebuild: Rebuild, wide: str) -> Typed:
    return Typed(rebuild.writer.emit("Cast", [wide], to=TensorProto.FLOAT16), Kind.HALF)
