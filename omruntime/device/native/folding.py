"""Operators over values that are known before a step runs: sizes, ranges, constants.

Owns their meaning in NumPy. What depends on a step's input is `emitters.py`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from omruntime.device.native.graph import Array, Node

_CAST_TYPES = {1: np.float32, 3: np.int8, 6: np.int32, 7: np.int64, 9: np.bool_}
Fold = Callable[[Node, Sequence[Array]], Sequence[Array]]


def fold(node: Node, inputs: Sequence[Array]) -> Sequence[Array] | None:
    """A node's outputs, or None where its operator is not among these."""
    function = _FOLDS.get(node.op)
    return None if function is None else function(node, inputs)


def evaluate(name: str, producers: Mapping[str, Node], known: dict[str, Array]) -> Array | None:
    """A value out of those that are known, all between kept in `known`; None where none lead there.

    Recursion is as deep as the chain of nodes is long.
    """
    if name in known:
        return known[name]
    node = producers.get(name)
    if node is None:
        return None
    inputs = [evaluate(each, producers, known) for each in node.inputs]
    present = [array for array in inputs if array is not None]
    outputs = fold(node, present) if len(present) == len(inputs) else None
    if outputs is None:
        return None
    known.update(zip(node.outputs, outputs, strict=True))
    return known.get(name)


def new_shape(wanted: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """The target of a Reshape: 0 keeps a dimension, -1 takes what is left."""
    kept = [shape[i] if size == 0 else int(size) for i, size in enumerate(wanted)]
    if -1 in kept:
        rest = int(np.prod([size for size in kept if size != -1], dtype=np.int64))
        kept[kept.index(-1)] = int(np.prod(shape, dtype=np.int64)) // rest if rest else 0
    return tuple(kept)


def axes_of(node: Node, inputs: Sequence[Array], place: int) -> tuple[int, ...]:
    """The axes of an operator that takes them as an input or as an attribute."""
    if len(inputs) > place:
        return tuple(int(i) for i in inputs[place].reshape(-1))
    return tuple(node.attributes.get("axes", ()))


def squeezed(array: Array, axes: Sequence[int]) -> Array:
    """Without axes of size 1."""
    return np.squeeze(array, tuple(axes) or None)


def unsqueezed(array: Array, axes: Sequence[int]) -> Array:
    """With new axes of size 1."""
    return np.expand_dims(array, tuple(axes))


def split(node: Node, inputs: Sequence[Array]) -> list[Array]:
    """The parts of a Split, views."""
    array, axis = inputs[0], int(node.attributes.get("axis", 0))
    if len(inputs) > 1:
        return np.split(array, np.cumsum(inputs[1])[:-1].tolist(), axis)
    return np.array_split(array, len(node.outputs), axis)


def sliced(_: Node, inputs: Sequence[Array]) -> list[Array]:
    """A Slice, a view."""
    array, starts, ends = inputs[:3]
    axes = inputs[3] if len(inputs) > 3 else np.arange(len(starts))
    steps = inputs[4] if len(inputs) > 4 else np.ones(len(starts), np.int64)
    window = [slice(None)] * array.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        window[int(axis)] = slice(int(start), int(end), int(step))
    return [array[tuple(window)]]


def expanded(_: Node, inputs: Sequence[Array]) -> list[Array]:
    """An Expand, a view whose repeated axes have stride 0."""
    shape = np.broadcast_shapes(inputs[0].shape, tuple(int(i) for i in inputs[1]))
    return [np.broadcast_to(inputs[0], shape)]


def transposed(node: Node, inputs: Sequence[Array]) -> list[Array]:
    """A Transpose, a view."""
    return [inputs[0].transpose(node.attributes.get("perm"))]


def _shape(node: Node, inputs: Sequence[Array]) -> list[Array]:
    begin, end = node.attributes.get("start", 0), node.attributes.get("end")
    return [np.array(inputs[0].shape[begin:end], np.int64)]


def _reduced(function: Any) -> Fold:
    def run(node: Node, inputs: Sequence[Array]) -> list[Array]:
        axes = axes_of(node, inputs, 1) or None
        keep = bool(node.attributes.get("keepdims", 1))
        return [np.asarray(function(inputs[0], axis=axes, keepdims=keep))]

    return run


def _each(function: Any) -> Fold:
    def run(_: Node, inputs: Sequence[Array]) -> list[Array]:
        result = np.asarray(function(*inputs))
        # NumPy widens what ONNX keeps.
        return [result if result.dtype == np.bool_ else result.astype(inputs[-1].dtype)]

    return run


def _divided(_: Node, inputs: Sequence[Array]) -> list[Array]:
    a, b = inputs
    if np.issubdtype(a.dtype, np.integer):
        return [np.asarray(np.trunc(a / b)).astype(a.dtype)]
    return [np.asarray(a / b)]


_FOLDS: dict[str, Fold] = {
    "Add": _each(np.add),
    "And": _each(np.logical_and),
    "Cast": lambda n, i: [i[0].astype(_CAST_TYPES[n.attributes["to"]])],
    "Concat": lambda n, i: [np.concatenate(i, n.attributes["axis"])],
    "Cos": _each(np.cos),
    "Div": _divided,
    "Equal": _each(np.equal),
    "Expand": expanded,
    "Gather": lambda n, i: [np.take(i[0], i[1], n.attributes.get("axis", 0))],
    "Greater": _each(np.greater),
    "GreaterOrEqual": _each(np.greater_equal),
    "Identity": lambda _, i: [i[0]],
    "Less": _each(np.less),
    "LessOrEqual": _each(np.less_equal),
    "Mul": _each(np.multiply),
    "Neg": _each(np.negative),
    "Or": _each(np.logical_or),
    "Range": lambda _, i: [np.arange(*(a.item() for a in i), dtype=i[0].dtype)],
    "ReduceProd": _reduced(np.prod),
    "ReduceSum": _reduced(np.sum),
    "Reshape": lambda _, i: [i[0].reshape(new_shape(i[1].tolist(), i[0].shape))],
    "Shape": _shape,
    "Sin": _each(np.sin),
    "Slice": sliced,
    "Split": split,
    "Squeeze": lambda n, i: [squeezed(i[0], axes_of(n, i, 1))],
    "Sub": _each(np.subtract),
    "Transpose": transposed,
    "Unsqueeze": lambda n, i: [unsqueezed(i[0], axes_of(n, i, 1))],
    "Where": _each(np.where),
}
