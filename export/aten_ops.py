"""What each torch operator becomes in ONNX (opset 18).

Owns one small function an operator. Names are those of torch's operator table with overload, as
they stand in an exported graph.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from export.emitters import arguments_of, aten, axis_of, fake, integer, untranslated
from export.translate import Translator, Value, tensor_of


@aten(
    "alias.default",
    "clone.default",
    "contiguous.default",
    "detach.default",
    "detach_.default",
    "dropout.default",
    "lift_fresh_copy.default",
    "_to_copy.default",
    "to.device",
    "to.dtype",
    "to.dtype_layout",
    "type_as.default",
)
def _same_or_cast(t: Translator, node: fx.Node) -> Value:
    source = node.args[0]
    wanted = tensor_of(node).dtype
    name = t.name(source)
    return name if fake(source).dtype == wanted else t.cast(name, wanted)


def _binary(op_type: str, *names: str) -> None:
    def emit(t: Translator, node: fx.Node) -> Value:
        a, b = node.args[0], node.args[1]
        if node.kwargs.get("alpha", 1) != 1 or node.kwargs.get("rounding_mode") is not None:
            raise untranslated(node, f"with {dict(node.kwargs)}")
        compares = tensor_of(node).dtype is torch.bool
        dtype = _common_dtype(a, b) if compares else tensor_of(node).dtype
        return t.writer.emit(op_type, [t.operand(a, dtype), t.operand(b, dtype)])

    aten(*names)(emit)


def _common_dtype(a: object, b: object) -> torch.dtype:
    one, other = (fake(x) if isinstance(x, fx.Node) else x for x in (a, b))
    assert isinstance(one, torch.Tensor)
    assert isinstance(other, torch.Tensor | int | float)
    return torch.result_type(one, other)


_binary("Add", "add.Tensor", "add_.Tensor")
_binary("Sub", "sub.Tensor")
_binary("Mul", "mul.Tensor", "mul_.Tensor")
_binary("Div", "div.Tensor", "div_.Tensor")
_binary("Less", "lt.Tensor", "lt.Scalar")
_binary("LessOrEqual", "le.Tensor", "le.Scalar")
_binary("Greater", "gt.Tensor", "gt.Scalar")
_binary("GreaterOrEqual", "ge.Tensor", "ge.Scalar")
_binary("Equal", "eq.Tensor", "eq.Scalar")
_binary("And", "__and__.Tensor", "bitwise_and.Tensor", "logical_and.default")


def _unary(op_type: str, *names: str) -> None:
    def emit(t: Translator, node: fx.Node) -> Value:
        return t.writer.emit(op_type, [t.operand(node.args[0], tensor_of(node).dtype)])

    aten(*names)(emit)


_unary("Neg", "neg.default")
_unary("Cos", "cos.default")
_unary("Sin", "sin.default")
_unary("Tanh", "tanh.default")
_unary("Sigmoid", "sigmoid.default")
_unary("Relu", "relu.default")
_unary("Exp", "exp.default")
_unary("Sqrt", "sqrt.default")
_unary("Reciprocal", "reciprocal.default")


@aten("rsqrt.default")
def _rsqrt(t: Translator, node: fx.Node) -> Value:
    return t.writer.emit("Reciprocal", [t.writer.emit("Sqrt", [t.name(node.args[0])])])


@aten("silu.default")
def _silu(t: Translator, node: fx.Node) -> Value:
    name = t.name(node.args[0])
    return t.writer.emit("Mul", [name, t.writer.emit("Sigmoid", [name])])


@aten("gelu.default")
def _gelu(t: Translator, node: fx.Node) -> Value:
    """Gelu came with opset 20, so it is spelled out."""
    arguments = arguments_of(node)
    x, dtype = t.name(arguments["self"]), tensor_of(node).dtype
    half, one = t.operand(0.5, dtype), t.operand(1.0, dtype)
    if arguments["approximate"] == "tanh":
        cube = t.writer.emit("Mul", [x, t.writer.emit("Mul", [x, x])])
        inner = t.writer.emit("Add", [x, t.writer.emit("Mul", [cube, t.operand(0.044715, dtype)])])
        scaled = t.writer.emit("Mul", [inner, t.operand(math.sqrt(2 / math.pi), dtype)])
        bent = t.writer.emit("Tanh", [scaled])
    else:
        bent = t.writer.emit("Erf", [t.writer.emit("Div", [x, t.operand(math.sqrt(2.0), dtype)])])
    gate = t.writer.emit("Mul", [x, t.writer.emit("Add", [bent, one])])
    return t.writer.emit("Mul", [gate, half])


@aten("pow.Tensor_Scalar", "pow.Tensor_Tensor")
def _pow(t: Translator, node: fx.Node) -> Value:
    dtype = tensor_of(node).dtype
    return t.writer.emit("Pow", [t.operand(node.args[0], dtype), t.operand(node.args[1], dtype)])


@aten("linear.default")
def _linear(t: Translator, node: fx.Node) -> Value:
    x, weight, bias = (arguments_of(node)[k] for k in ("input", "weight", "bias"))
    if fake(x).ndim == 2:
        # Reads the weight as it is stored, so that a head can share the embedding's.
        inputs = [t.name(x), t.name(weight)] + ([t.name(bias)] if bias is not None else [])
        return t.writer.emit("Gemm", inputs, transB=1)
    stored = t.value(weight)  # type: ignore[arg-type]
    if isinstance(stored, torch.Tensor):
        assert isinstance(weight, fx.Node)
        turned = t.constant_of(weight, stored.t(), "transposed")
    else:
        turned = t.writer.emit("Transpose", [t.name(weight)], perm=[1, 0])
    product = t.writer.emit("MatMul", [t.name(x), turned])
    return product if bias is None else t.writer.emit("Add", [product, t.name(bias)])


@aten("matmul.default", "bmm.default", "mm.default")
def _matmul(t: Translator, node: fx.Node) -> Value:
    return t.writer.emit("MatMul", [t.name(node.args[0]), t.name(node.args[1])])


@aten("addmm.default")
def _addmm(t: Translator, node: fx.Node) -> Value:
    arguments = arguments_of(node)
    if arguments["alpha"] != 1 or arguments["beta"] != 1:
        raise untranslated(node, "with factors")
    inputs = [t.name(arguments[k]) for k in ("mat1", "mat2", "self")]
    return t.writer.emit("Gemm", inputs)


@aten("layer_norm.default")
def _layer_norm(t: Translator, node: fx.Node) -> Value:
    arguments = arguments_of(node)
    inputs = [t.name(arguments["input"]), t.name(arguments["weight"])]
    if arguments["bias"] is not None:
        inputs.append(t.name(arguments["bias"]))
    axis = -len(arguments["normalized_shape"])  # type: ignore[arg-type]
    eps = arguments["eps"]
    assert isinstance(eps, float)
    return t.writer.emit("LayerNormalization", inputs, axis=axis, epsilon=eps)


@aten("softmax.int", "_softmax.default")
def _softmax(t: Translator, node: fx.Node) -> Value:
    x = t.operand(node.args[0], tensor_of(node).dtype)
    return t.writer.emit("Softmax", [x], axis=integer(node.args[1]))


@aten("mean.dim")
def _mean(t: Translator, node: fx.Node) -> Value:
    return _reduce(t, node, "ReduceMean")


@aten("sum.dim_IntList")
def _sum(t: Translator, node: fx.Node) -> Value:
    return _reduce(t, node, "ReduceSum")


def _reduce(t: Translator, node: fx.Node, op_type: str) -> str:
    arguments = arguments_of(node)
    axes = arguments["dim"]
    assert isinstance(axes, list | tuple)
    name = t.operand(arguments["self"], tensor_of(node).dtype)
    return t.writer.emit(
        op_type, [name, t.writer.ints(axes)], keepdims=int(bool(arguments["keepdim"]))
    )


@aten("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def _where(t: Translator, node: fx.Node) -> Value:
    dtype = tensor_of(node).dtype
    chosen = [t.operand(argument, dtype) for argument in node.args[1:3]]
    return t.writer.emit("Where", [t.name(node.args[0]), *chosen])


@aten("embedding.default")
def _embedding(t: Translator, node: fx.Node) -> Value:
    return t.writer.emit("Gather", [t.name(node.args[0]), t.name(node.args[1])], axis=0)


@aten("index_select.default")
def _index_select(t: Translator, node: fx.Node) -> Value:
    table, axis, index = node.args[:3]
    return t.writer.emit(
        "Gather", [t.name(table), t.name(index)], axis=axis_of(axis, fake(table).ndim)
    )


@aten("gather.default")
def _gather_elements(t: Translator, node: fx.Node) -> Value:
    source, axis, index = node.args[:3]
    return t.writer.emit("GatherElements", [t.name(source), t.name(index)], axis=integer(axis))


@aten("topk.default")
def _topk(t: Translator, node: fx.Node) -> Value:
    arguments = arguments_of(node)
    outputs = t.writer.emit_many(
        "TopK",
        [t.name(arguments["self"]), t.writer.ints([integer(arguments["k"])])],
        2,
        axis=integer(arguments["dim"]),
        largest=int(bool(arguments["largest"])),
        sorted=1,
    )
    return list(outputs)


@aten("one_hot.default")
def _one_hot(t: Translator, node: fx.Node) -> Value:
    index, depth = node.args[0], t.writer.ints([integer(node.args[1])])
    values = t.writer.constant(torch.tensor([0, 1], dtype=torch.int64), "off_on")
    return t.writer.emit("OneHot", [t.name(index), depth, values], axis=-1)


@aten("arange.default", "arange.start", "arange.start_step")
def _arange(t: Translator, node: fx.Node) -> Value:
    arguments = arguments_of(node)
    dtype = tensor_of(node).dtype
    if arguments.get("start", 0) != 0 or arguments.get("step", 1) != 1:
        raise untranslated(node, "with a start or step")
    zero, one = t.operand(0, dtype), t.operand(1, dtype)
    return t.writer.emit("Range", [zero, t.size_scalar(tensor_of(node).shape[0], dtype), one])


@aten("full.default", "zeros.default", "ones.default")
def _filled(_t: Translator, node: fx.Node) -> Value:
    raise untranslated(node, "of a symbolic size")
