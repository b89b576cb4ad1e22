"""Translator: a torch.export graph to ONNX, node by node.

Owns the walk, folding of constants and symbolic sizes. What each torch operator becomes stands
in `aten_ops.py`.

Why not torch.onnx: on a graph with symbolic sizes it takes minutes for 30 layers and turns every
size of every reshape into nodes. Here a reshape keeps constant targets with 0 and -1.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import sympy
import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from export.onnx_writer import GraphWriter, onnx_type
from omruntime.errors import ExportError

# What a torch value is here: a constant, the name of an ONNX value, or several of them.
Value = Tensor | str | list["Value"]
Size = int | torch.SymInt
# The wrapped model's own names are what people know.
WRAPPER_PREFIX = "model."
Emitter = Callable[["Translator", fx.Node], Value]


class Translator:
    """Translates one exported program into a `GraphWriter`."""

    def __init__(self, program: ExportedProgram, emitters: dict[str, Emitter]) -> None:
        self.writer = GraphWriter()
        self._program = program
        self._emitters = emitters
        self._values: dict[fx.Node, Value] = {}
        self._constant_names: dict[fx.Node, str] = {}
        self._symbols: dict[sympy.Symbol, tuple[str, int]] = {}
        self._reshaped: dict[str, tuple[str, Sequence[Size]]] = {}
        self._permuted: dict[str, tuple[str, tuple[int, ...]]] = {}

    def run(self, input_names: Sequence[str]) -> list[str]:
        """Translate everything.

        Args:
            input_names: For the user inputs, flattened, in order.

        Returns:
            The value names of the graph's outputs.

        Raises:
            ExportError: An operator has no translation; all such are named.
        """
        graph = self._program.graph
        self._refuse_unknown(graph)
        self._bind_placeholders(graph, list(input_names))
        for node in graph.nodes:
            if node.op == "call_function":
                self.writer.scope = _module_path(node)
                self._values[node] = self._translate(node)
                self._note_sizes(node)
        (output,) = [n for n in graph.nodes if n.op == "output"]
        self.writer.scope = ""
        return [self.name(argument) for argument in output.args[0]]

    def name(self, argument: object) -> str:
        """The ONNX value name of a node argument that is a tensor; constants are added."""
        assert isinstance(argument, fx.Node), argument
        value = self._values[argument]
        if isinstance(value, Tensor):
            return self.writer.constant(value, self._constant_names.get(argument, argument.name))
        assert isinstance(value, str), argument
        return value

    def value(self, argument: fx.Node) -> Value:
        """The translated value of a node."""
        return self._values[argument]

    def operand(self, argument: object, dtype: torch.dtype) -> str:
        """As `name`, as `dtype`; a Python number becomes a scalar constant."""
        if isinstance(argument, bool | int | float):
            return self.writer.constant(torch.tensor(argument, dtype=dtype), "scalar")
        assert isinstance(argument, fx.Node)
        if isinstance(argument.meta["val"], torch.SymInt):
            return self.size_scalar(argument.meta["val"], dtype)
        name = self.name(argument)
        return name if tensor_of(argument).dtype == dtype else self.cast(name, dtype)

    def cast(self, name: str, dtype: torch.dtype) -> str:
        """The value as another dtype."""
        return self.writer.emit("Cast", [name], to=onnx_type(dtype))

    def sizes(self, shape: Sequence[Size]) -> str:
        """The name of an int64 list with the given sizes, computed where symbolic."""
        parts: list[str] = []
        run: list[int] = []
        for size in shape:
            if isinstance(size, int):
                run.append(size)
                continue
            if run:
                parts.append(self.writer.ints(run))
                run = []
            parts.append(self._size(size.node.expr))
        if run:
            parts.append(self.writer.ints(run))
        return parts[0] if len(parts) == 1 else self.writer.emit("Concat", parts, axis=0)

    def size_scalar(self, size: Size, dtype: torch.dtype) -> str:
        """One size as a scalar of the given dtype."""
        scalar = self.writer.emit("Squeeze", [self.sizes([size]), self.writer.ints([0])])
        return scalar if dtype is torch.int64 else self.cast(scalar, dtype)

    def reshape(self, name: str, before: Sequence[Size], after: Sequence[Size]) -> str:
        """Reshape with a constant target wherever one unknown size is enough."""
        source, source_shape = self._reshaped.get(name, (name, before))
        target = _reshape_target(source_shape, after)
        if target is None:
            source, source_shape = name, before
            target = _reshape_target(before, after)
        if len(source_shape) == len(after) and all(map(same_size, source_shape, after)):
            return source
        shape = self.sizes(after) if target is None else self.writer.ints(target)
        reshaped = self.writer.emit("Reshape", [source, shape])
        self._reshaped[reshaped] = (source, source_shape)
        return reshaped

    def permute(self, name: str, order: Sequence[int]) -> str:
        """Transpose, joined with the transpose before it; none where nothing moves."""
        straight = tuple(range(len(order)))
        source, before = self._permuted.get(name, (name, straight))
        joined = tuple(before[axis] for axis in order)
        if joined == straight:
            return source
        if tuple(order) == (*straight[:-2], straight[-1], straight[-2]):
            # Left alone: the matrix product behind it takes this one in for free.
            source, joined = name, tuple(order)
        permuted = self.writer.emit("Transpose", [source], perm=joined)
        self._permuted[permuted] = (source, joined)
        return permuted

    def constant_of(self, node: fx.Node, tensor: Tensor, suffix: str) -> str:
        """The name of a constant derived from the constant of `node`."""
        return self.writer.constant(tensor, f"{self._constant_names.get(node, node.name)}.{suffix}")

    def _size(self, expression: sympy.Expr) -> str:
        """A symbolic size as an int64 list of one."""
        if isinstance(expression, sympy.Symbol):
            name, axis = self._symbols[expression]
            return self.writer.emit("Shape", [name], start=axis, end=axis + 1)
        if expression.is_Integer:
            return self.writer.ints([int(expression)])
        op_type = {"Mul": "Mul", "Add": "Add", "FloorDiv": "Div"}.get(type(expression).__name__)
        if op_type is None:
            raise ExportError(f"cannot compute the tensor size {expression} in the graph")
        first, *rest = (self._size(part) for part in expression.args)
        for part in rest:
            first = self.writer.emit(op_type, [first, part])
        return first

    def _translate(self, node: fx.Node) -> Value:
        if _is_bookkeeping(node):
            return ""
        if node.target is operator.getitem:
            parts, index = (self._values[node.args[0]], node.args[1])  # type: ignore[index]
            assert isinstance(parts, list)
            assert isinstance(index, int)
            return parts[index]
        inputs = [self._values[n] for n in node.all_input_nodes]
        if all(isinstance(value, Tensor) for value in inputs) and _is_static(node):
            arguments, named = fx.map_arg((node.args, node.kwargs), lambda n: self._values[n])
            folded: Value = node.target(*arguments, **named)  # type: ignore[operator]
            return folded if isinstance(folded, Tensor) else list(folded)
        return self._emitters[str(node.target)](self, node)

    def _bind_placeholders(self, graph: fx.Graph, input_names: list[str]) -> None:
        by_name = {s.arg.name: s for s in self._program.graph_signature.input_specs}
        for node in graph.nodes:
            if node.op != "placeholder":
                continue
            spec = by_name[node.name]
            if spec.kind is InputKind.USER_INPUT:
                self._values[node] = input_names.pop(0)
                self._note_symbols(node)
                continue
            source = self._program.state_dict
            if spec.target not in source:
                source = self._program.constants
            self._values[node] = source[spec.target].detach()
            self._constant_names[node] = str(spec.target).removeprefix(WRAPPER_PREFIX)
        assert not input_names, input_names

    def _note_sizes(self, node: fx.Node) -> None:
        value = self._values[node]
        if isinstance(value, str) and isinstance(node.meta.get("val"), Tensor):
            sizes = (s if isinstance(s, int) else None for s in tensor_of(node).shape)
            self.writer.sizes[value] = tuple(sizes)

    def _note_symbols(self, node: fx.Node) -> None:
        name = self._values[node]
        assert isinstance(name, str)
        for axis, size in enumerate(tensor_of(node).shape):
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                self._symbols.setdefault(size.node.expr, (name, axis))

    def _refuse_unknown(self, graph: fx.Graph) -> None:
        unknown = sorted(
            {
                str(n.target)
                for n in graph.nodes
                if n.op == "call_function"
                and str(n.target) not in self._emitters
                and n.target is not operator.getitem
                and not _is_bookkeeping(n)
            }
        )
        if unknown:
            raise ExportError(
                f"the model uses operators that the exporter does not translate: "
                f"{', '.join(unknown)}; export/aten_ops.py lists those it does"
            )


def tensor_of(node: fx.Node) -> Tensor:
    """The fake tensor (shape, dtype) that a node yields."""
    value = node.meta["val"]
    assert isinstance(value, Tensor), node
    return value


def same_size(one: Size, other: Size) -> bool:
    """Whether two sizes are the same number or the same expression."""
    if isinstance(one, int) or isinstance(other, int):
        return isinstance(one, int) and isinstance(other, int) and one == other
    return bool(one.node.expr == other.node.expr)


def _reshape_target(before: Sequence[Size], after: Sequence[Size]) -> list[int] | None:
    """A target of constants, 0 (copy) and one -1 (the rest); None when that cannot say it."""
    target: list[int] = []
    for axis, size in enumerate(after):
        if isinstance(size, int) or size.node.expr.is_Integer:
            target.append(int(size))
        elif axis < len(before) and same_size(before[axis], size):
            target.append(0)
        else:
            target.append(-1)
    return target if target.count(-1) < 2 else None


def _is_bookkeeping(node: fx.Node) -> bool:
    """Sizes, which are read from the shapes they end up in, and torch's own checks."""
    if str(node.target) == "aten._assert_tensor_metadata.default":
        return True
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymBool)


def _is_static(node: fx.Node) -> bool:
    """Whether folding it needs no symbolic size."""
    values = node.meta["val"]
    values = values if isinstance(values, list | tuple) else [values]
    return all(isinstance(size, int) for value in values for size in value.shape)


def _module_path(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()), ("",))[0] if stack else ""
    return str(path).replace("L__self__", "").strip(".").removeprefix(WRAPPER_PREFIX)
