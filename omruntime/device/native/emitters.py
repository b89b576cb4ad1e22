"""What each operator becomes: a view, a kernel, or a refusal by name.

Owns the operators of a step graph that depend on its input. Those over sizes alone are worked out
before (`folding.py`); products, gates and attention come fused (`fusion.py`,
`attention_pattern.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from omruntime.device.native.attention_pattern import ATTENTION
from omruntime.device.native.folding import (
    axes_of,
    expanded,
    new_shape,
    sliced,
    split,
    squeezed,
    transposed,
    unsqueezed,
)
from omruntime.device.native.fusion import LINEAR, SILU_MUL
from omruntime.device.native.graph import Array, Node
from omruntime.device.native.plan import Plan
from omruntime.device.native.schedule import PLACE
from omruntime.errors import BundleError

_CAST_TYPES = {1: np.float32, 6: np.int32, 7: np.int64, 16: np.uint16}
Emit = Callable[[Plan, Node], None]


def require_kernels(nodes: Iterable[Node]) -> None:
    """Refuse a graph with an operator that has no kernel.

    Raises:
        BundleError: The message names operators and a node of each.
    """
    missing = {node.op: node.name for node in nodes if node.op not in _EMITTERS}
    if missing:
        named = ", ".join(f"{op} (node {name})" for op, name in sorted(missing.items()))
        raise BundleError(
            f"the native device has no kernel for {named}; serve this bundle with --device cpu"
        )


def emit(plan: Plan, node: Node) -> None:
    """Add a node to a plan.

    Raises:
        BundleError: A kernel does not take what the node takes.
    """
    if not plan.fold(node):
        _EMITTERS[node.op](plan, node)
    plan.finish(node)


def _linear(plan: Plan, node: Node) -> None:
    matrix, attributes = node.attributes["matrix"], node.attributes
    x, *rest = (plan.array(name) for name in node.inputs)
    bias = rest.pop(0) if attributes["bias"] else None
    shape = (*x.shape[:-1], matrix.shape[1])
    addend = np.broadcast_to(rest[0], shape) if attributes.get("addend") else None
    y = plan.result(node.outputs[0], shape)
    rows = [None if a is None else _as_rows(plan, a) for a in (x, addend)]
    plan.run("linear", [rows[0], matrix, _as_rows(plan, y), bias, rows[1]])


def _as_rows(plan: Plan, array: Array) -> Array:
    return plan.reshaped(plan.whole_rows(array), (-1, array.shape[-1]))


def _silu_mul(plan: Plan, node: Node) -> None:
    gate, up = (plan.whole_rows(a) for a in _broadcast(plan, node))
    plan.run("silu_mul", [gate, up, plan.result(node.outputs[0], gate.shape)])


def _broadcast(plan: Plan, node: Node) -> list[Array]:
    """The inputs in one shape, of rank 1 at least."""
    arrays = [plan.array(name) for name in node.inputs]
    shape = np.broadcast_shapes(*(a.shape for a in arrays)) or (1,)
    return [np.broadcast_to(a, shape) for a in arrays]


def _attention(plan: Plan, node: Node) -> None:
    queries, keys, values, pool_keys, pool_values, *integers = map(plan.array, node.inputs)
    batch, heads, tokens, head_dim = queries.shape
    kv_heads = keys.shape[0]
    shape = (batch, tokens, kv_heads, heads // kv_heads, head_dim)
    y = plan.result(node.outputs[0], shape)
    new = [plan.whole_rows(array.transpose(1, 0, 2, 3)) for array in (keys, values)]
    numbers = [node.attributes[name] for name in ("scale", "window", "softcap")]
    joined = y.reshape(batch, tokens, heads, head_dim)
    operands = [plan.whole_rows(queries), *new, pool_keys, pool_values, *integers, joined]
    plan.run("attention", operands, numbers)


def _norm(plan: Plan, node: Node) -> None:
    x, *weights = (plan.array(name) for name in node.inputs)
    if int(node.attributes.get("axis", -1)) not in (-1, x.ndim - 1):
        raise BundleError(f"node {node.name}: got a norm over several axes, wanted the last")
    kernel = "layer_norm" if node.op == "LayerNormalization" else "rms_norm"
    if kernel == "layer_norm" and len(weights) == 1:
        weights.append(np.zeros(x.shape[-1], np.float32))
    y = plan.result(node.outputs[0], x.shape)
    plan.run(kernel, [plan.whole_rows(x), *weights, y], [node.attributes.get("epsilon", 1e-5)])


def _rotary(plan: Plan, node: Node) -> None:
    x, ids, cos, sin = (plan.array(name) for name in node.inputs)
    given = {k for k, v in node.attributes.items() if v}
    if given or x.ndim != 4:
        raise BundleError(
            f"node {node.name}: got a rotary embedding of rank {x.ndim} with {sorted(given)}, "
            f"wanted rank 4 and no attributes"
        )
    y = plan.result(node.outputs[0], x.shape)
    plan.run("rotary", [plan.whole_rows(x), ids, cos, sin, y])


def _unary(kernel: str) -> Emit:
    def emit_one(plan: Plan, node: Node) -> None:
        x = plan.whole_rows(plan.array(node.inputs[0]))
        plan.run(kernel, [x, plan.result(node.outputs[0], x.shape)])

    return emit_one


def _binary(kernel: str) -> Emit:
    def emit_two(plan: Plan, node: Node) -> None:
        x, z = _broadcast(plan, node)
        shape = np.broadcast_shapes(*(plan.array(name).shape for name in node.inputs))
        y = plan.result(node.outputs[0], shape, x.dtype)
        plan.run(kernel, [x, z, np.atleast_1d(y)])

    return emit_two


def _cast(plan: Plan, node: Node) -> None:
    x, to = plan.array(node.inputs[0]), node.attributes["to"]
    if to not in _CAST_TYPES:
        raise BundleError(f"node {node.name}: got a cast to ONNX type {to}, wanted {_CAST_TYPES}")
    plan.copy(x, plan.result(node.outputs[0], x.shape, _CAST_TYPES[to]))


def _gather(plan: Plan, node: Node) -> None:
    table, ids = (plan.array(name) for name in node.inputs)
    if int(node.attributes.get("axis", 0)) != 0:
        raise BundleError(f"node {node.name}: got a Gather along an inner axis, wanted rows")
    y = plan.result(node.outputs[0], (*ids.shape, *table.shape[1:]), table.dtype)
    rows = plan.reshaped(table, (table.shape[0], -1))
    flat = plan.reshaped(ids, (-1,))
    plan.run("gather", [plan.whole_rows(rows), flat, y.reshape(flat.size, -1)])


def _concat(plan: Plan, node: Node) -> None:
    parts = [plan.array(name) for name in node.inputs]
    axis = int(node.attributes["axis"]) % parts[0].ndim
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    y, start = plan.result(node.outputs[0], tuple(shape), parts[0].dtype), 0
    for part in parts:
        window = [slice(None)] * y.ndim
        window[axis] = slice(start, start + part.shape[axis])
        plan.copy(part, y[tuple(window)])
        start += part.shape[axis]


def _softmax(plan: Plan, node: Node) -> None:
    x = plan.whole_rows(plan.array(node.inputs[0]))
    _require_last_axis(node, x)
    plan.run("softmax", [x, plan.result(node.outputs[0], x.shape)])


def _top_k(plan: Plan, node: Node) -> None:
    x, k = plan.whole_rows(plan.array(node.inputs[0])), plan.known(node.inputs[1])
    _require_last_axis(node, x)
    if k is None or not node.attributes.get("largest", 1):
        raise BundleError(f"node {node.name}: got a TopK of the smallest or of a changing number")
    shape = (*x.shape[:-1], int(k.reshape(())))
    values = plan.result(node.outputs[0], shape)
    plan.run("top_k", [x, values, plan.result(node.outputs[1], shape, np.int64)])


def _require_last_axis(node: Node, x: Array) -> None:
    if int(node.attributes.get("axis", -1)) not in (-1, x.ndim - 1):
        raise BundleError(f"node {node.name}: got a {node.op} over another axis than the last")


def _compare(kernel: str) -> Emit:
    def emit_comparison(plan: Plan, node: Node) -> None:
        x, z = _broadcast(plan, node)
        plan.run(kernel, [x, z, plan.result(node.outputs[0], x.shape, np.bool_)])

    return emit_comparison


def _where(plan: Plan, node: Node) -> None:
    arrays = _broadcast(plan, node)
    plan.run("where", [*arrays, plan.result(node.outputs[0], arrays[0].shape)])


def _reduce_sum(plan: Plan, node: Node) -> None:
    x, axes = plan.array(node.inputs[0]), plan.known(node.inputs[1])
    if axes is None or axes.size != 1:
        raise BundleError(f"node {node.name}: got a sum over {axes}, wanted one axis")
    last = np.moveaxis(x, int(axes.reshape(())), -1)
    kept = np.expand_dims(last[..., 0], int(axes.reshape(())))
    shape = kept.shape if node.attributes.get("keepdims", 1) else last.shape[:-1]
    y = plan.result(node.outputs[0], shape)
    plan.run("sum", [last, y.reshape(last.shape[:-1])])


def _place(plan: Plan, node: Node) -> None:
    plan.place(plan.array(node.inputs[0]), **node.attributes)


def _view(look: Callable[[Plan, Node, list[Array]], list[Array]]) -> Emit:
    """An operator that only looks at memory in another way; its other inputs are known."""

    def emit_view(plan: Plan, node: Node) -> None:
        source = node.inputs[0]
        given = [plan.known(name) for name in node.inputs[1:]]
        known = [array for array in given if array is not None]
        if len(known) < len(given):
            raise BundleError(f"node {node.name}: got a {node.op} whose sizes change by step")
        arrays = look(plan, node, [plan.array(source), *known])
        for name, array in zip(node.outputs, arrays, strict=True):
            plan.look(name, source, array)

    return emit_view


def _reshape(plan: Plan, node: Node, inputs: list[Array]) -> list[Array]:
    array, wanted = inputs
    return [plan.reshaped(array, new_shape(wanted.tolist(), array.shape))]


_EMITTERS: dict[str, Emit] = {
    "Add": _binary("add"),
    ATTENTION: _attention,
    "Cast": _cast,
    "Concat": _concat,
    "Cos": _unary("cos"),
    "Div": _binary("div"),
    "Equal": _compare("equal"),
    "Expand": _view(lambda _, node, inputs: expanded(node, inputs)),
    "Gather": _gather,
    "Greater": _compare("greater"),
    "Identity": _view(lambda _, node, inputs: inputs),
    "LayerNormalization": _norm,
    LINEAR: _linear,
    "Mul": _binary("mul"),
    "Neg": _unary("neg"),
    PLACE: _place,
    "Pow": _binary("pow"),
    # Whatever they take is a size, which folding knows.
    "Range": _view(lambda _, node, inputs: inputs),
    "ReduceProd": _view(lambda _, node, inputs: inputs),
    "ReduceSum": _reduce_sum,
    "Reshape": _view(_reshape),
    "com.microsoft.RotaryEmbedding": _rotary,
    "Shape": _view(lambda _, node, inputs: inputs),
    "Sigmoid": _unary("sigmoid"),
    SILU_MUL: _silu_mul,
    "SimplifiedLayerNormalization": _norm,
    "Sin": _unary("sin"),
    "Slice": _view(lambda _, node, inputs: sliced(node, inputs)),
    "Softmax": _softmax,
    "Split": _view(lambda _, node, inputs: split(node, inputs)),
    "Squeeze": _view(lambda _, node, i: [squeezed(i[0], axes_of(node, i, 1))]),
    "Sub": _binary("sub"),
    "Tanh": _unary("tanh"),
    "TopK": _top_k,
    "Transpose": _view(lambda _, node, inputs: transposed(node, inputs)),
    "Unsqueeze": _view(lambda _, node, i: [unsqueezed(i[0], axes_of(node, i, 1))]),
    "Where": _where,
}
