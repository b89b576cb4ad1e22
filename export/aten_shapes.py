"""What torch operators that only move or reshape data become in ONNX (opset 18)."""

from __future__ import annotations

import torch
from torch import fx

from export.emitters import arguments_of, aten, axis_of, fake, integer, untranslated
from export.translate import Size, Translator, Value, same_size, tensor_of

_TO_THE_END = torch.iinfo(torch.int64).max


@aten(
    "reshape.default",
    "view.default",
    "_unsafe_view.default",
    "flatten.using_ints",
    "unflatten.int",
    "squeeze.dim",
    "squeeze.dims",
    "unsqueeze.default",
)
def _reshape(t: Translator, node: fx.Node) -> Value:
    source = node.args[0]
    return t.reshape(t.name(source), fake(source).shape, tensor_of(node).shape)


@aten("transpose.int", "t.default")
def _transpose(t: Translator, node: fx.Node) -> Value:
    source = node.args[0]
    rank = fake(source).ndim
    one, other = (axis_of(a, rank) for a in node.args[1:3]) if len(node.args) > 1 else (0, 1)
    order = list(range(rank))
    order[one], order[other] = order[other], order[one]
    return t.permute(t.name(source), order)


@aten("permute.default")
def _permute(t: Translator, node: fx.Node) -> Value:
    source, order = node.args[0], node.args[1]
    assert isinstance(order, list | tuple)
    rank = fake(source).ndim
    return t.permute(t.name(source), [axis_of(a, rank) for a in order])


@aten("expand.default")
def _expand(t: Translator, node: fx.Node) -> Value:
    before, after = fake(node.args[0]).shape, tensor_of(node).shape
    if len(before) == len(after) and all(map(same_size, before, after)):
        return t.name(node.args[0])
    return t.writer.emit("Expand", [t.name(node.args[0]), t.sizes(after)])


@aten("cat.default")
def _cat(t: Translator, node: fx.Node) -> Value:
    arguments = arguments_of(node)
    tensors = arguments["tensors"]
    assert isinstance(tensors, list | tuple)
    rank, dtype = tensor_of(node).ndim, tensor_of(node).dtype
    names = [t.operand(tensor, dtype) for tensor in tensors]
    return t.writer.emit("Concat", names, axis=axis_of(arguments["dim"], rank))


@aten("stack.default")
def _stack(t: Translator, node: fx.Node) -> Value:
    arguments = arguments_of(node)
    tensors = arguments["tensors"]
    assert isinstance(tensors, list | tuple)
    axis = axis_of(arguments["dim"], tensor_of(node).ndim)
    axes = t.writer.ints([axis])
    names = [t.writer.emit("Unsqueeze", [t.name(tensor), axes]) for tensor in tensors]
    return t.writer.emit("Concat", names, axis=axis)


@aten("slice.Tensor")
def _slice(t: Translator, node: fx.Node) -> Value:
    arguments = arguments_of(node)
    source = fake(arguments["self"])
    axis = axis_of(arguments["dim"], source.ndim)
    start, end, step = arguments["start"] or 0, arguments["end"], integer(arguments["step"])
    whole = start == 0 and step == 1 and same_size(source.shape[axis], tensor_of(node).shape[axis])
    if whole:
        return t.name(arguments["self"])
    bounds = [t.sizes([_size(start)]), t.sizes([_TO_THE_END if end is None else _size(end)])]
    inputs = [t.name(arguments["self"]), *bounds, t.writer.ints([axis]), t.writer.ints([step])]
    return t.writer.emit("Slice", inputs)


@aten("select.int")
def _select(t: Translator, node: fx.Node) -> Value:
    source, axis, index = node.args
    position = t.writer.constant(torch.tensor(integer(index), dtype=torch.int64), "index")
    return t.writer.emit(
        "Gather", [t.name(source), position], axis=axis_of(axis, fake(source).ndim)
    )


@aten("chunk.default", "split.Tensor", "split_with_sizes.default", "unbind.int")
def _split(t: Translator, node: fx.Node) -> Value:
    arguments = arguments_of(node)
    parts = node.meta["val"]
    axis = axis_of(arguments["dim"], fake(arguments["self"]).ndim)
    if str(node.target) == "aten.unbind.int":
        raise untranslated(node, "of a computed tensor")
    sizes = t.sizes([part.shape[axis] for part in parts])
    return list(
        t.writer.emit_many("Split", [t.name(arguments["self"]), sizes], len(parts), axis=axis)
    )


@aten("repeat_interleave.self_int")
def _repeat_interleave(t: Translator, node: fx.Node) -> Value:
    """Each element of one axis `repeats` times in a row: expand a new axis behind it, merge."""
    arguments = arguments_of(node)
    source, after = fake(arguments["self"]), tensor_of(node)
    axis = axis_of(arguments["dim"], source.ndim)
    apart: list[Size] = [*source.shape[: axis + 1], 1, *source.shape[axis + 1 :]]
    expanded = [1] * (source.ndim + 1)
    expanded[axis + 1] = integer(arguments["repeats"])
    name = t.reshape(t.name(arguments["self"]), source.shape, apart)
    name = t.writer.emit("Expand", [name, t.writer.ints(expanded)])
    apart[axis + 1] = expanded[axis + 1]
    return t.reshape(name, apart, after.shape)


def _size(bound: object) -> Size:
    if isinstance(bound, fx.Node):
        value = bound.meta["val"]
        assert isinstance(value, torch.SymInt)
        return value
    return integer(bound)
