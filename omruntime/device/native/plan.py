"""From a graph to the program of one bucket: which kernel runs over which memory.

All sizes of a bucket are known, so that shapes, ranges and reshapes are worked out here, once. An
array stands for every value: NumPy's views are the views of the program, and what a step changes is
only what the arrays hold. What each operator becomes is `emitters.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from omruntime.device.native.folding import fold
from omruntime.device.native.graph import Array, Graph, Node
from omruntime.device.native.work_memory import Block, WorkMemory
from omruntime.errors import BundleError
from omruntime.native import Matrix, NativeProgram


@dataclass(frozen=True, slots=True)
class Value:
    """What a name stands for while a bucket is planned.

    Attributes:
        is_known: The array holds the value itself, before any step.
        block: Work memory that the array looks into; None for what the program does not own.
    """

    array: Array
    is_known: bool
    block: Block | None = None


class Plan:
    """The program of one bucket under construction; emitters write into it."""

    def __init__(self, graph: Graph, memory: WorkMemory, bound: Mapping[str, Array]) -> None:
        """Plan a bucket.

        Args:
            bound: Arrays of the graph's inputs and outputs, by name.
        """
        self.program = NativeProgram()
        self._memory = memory
        self._bound = bound
        self._values = {name: Value(array, True) for name, array in graph.constants.items()}
        self._values |= {name: Value(bound[name], False) for name in graph.inputs}
        self._outputs = set(graph.outputs)
        self._num_uses: dict[str, int] = {}
        for node in graph.nodes:
            for name in node.inputs:
                self._num_uses[name] = self._num_uses.get(name, 0) + 1
        memory.begin()

    def array(self, name: str) -> Array:
        """The array of a value."""
        return self._values[name].array

    def known(self, name: str) -> Array | None:
        """A value that no step changes, or None."""
        value = self._values[name]
        return value.array if value.is_known else None

    def run(
        self, kernel: str, operands: Sequence[Array | Matrix | None], numbers: Sequence[float] = ()
    ) -> None:
        """Add a kernel."""
        self.program.append(kernel, operands, numbers)

    def result(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        """Memory for a value that a kernel writes: the output itself, or work memory."""
        if name in self._outputs:
            return self._output(name, shape)
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        block = self._memory.take(max(1, nbytes))
        array: Array = block.bytes[:nbytes].view(dtype).reshape(shape)
        self._hold(name, Value(array, False, block))
        return array

    def scratch(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        """Work memory for this bucket, never given back: rare copies and small tables."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        array: Array = self._memory.take(max(1, nbytes)).bytes[:nbytes].view(dtype)
        return array.reshape(shape)

    def look(self, name: str, source: str, array: Array) -> None:
        """Let a name stand for another look at a value's memory."""
        value = self._values[source]
        if name in self._outputs:
            self.copy(array, self._output(name, array.shape))
            return
        self._hold(name, Value(array, value.is_known, value.block))

    def reshaped(self, array: Array, shape: tuple[int, ...]) -> Array:
        """An array in another shape; a copy where its strides do not allow a view."""
        view = array.reshape(shape)
        if view.size == 0 or np.may_share_memory(view, array):
            return view
        copy = self.scratch(array.shape, array.dtype)
        self.copy(array, copy)
        return copy.reshape(shape)

    def whole_rows(self, array: Array) -> Array:
        """An array whose last axis is in one piece; a copy where it is not."""
        if array.ndim and (array.shape[-1] <= 1 or array.strides[-1] == array.itemsize):
            return array
        return self.reshaped_copy(array)

    def reshaped_copy(self, array: Array) -> Array:
        """A copy without gaps, of rank 1 at least."""
        copy = self.scratch(array.shape or (1,), array.dtype)
        self.copy(array.reshape(copy.shape), copy)
        return copy

    def copy(self, source: Array, target: Array) -> None:
        """Add a copy, widening or narrowing where the types differ."""
        if source.size:
            self.run("cast", [np.atleast_1d(source), np.atleast_1d(target)])

    def fold(self, node: Node) -> bool:
        """Work a node out now, if all it takes is known; whether it was."""
        inputs = [self.known(name) for name in node.inputs if name]
        if node.op == "Shape":
            inputs = [self.array(node.inputs[0])]
        present = [array for array in inputs if array is not None]
        outputs = fold(node, present) if len(present) == len(inputs) else None
        if outputs is None:
            return False
        for name, array in zip(node.outputs, outputs, strict=True):
            self._values[name] = Value(np.asarray(array), True)
        return True

    def place(self, source: Array, output: str, index: int, count: int) -> None:
        """Add the copy of one of the equal parts of an output to its place."""
        target = self._bound[output]
        size = target.shape[0] // count
        if source.shape != (size, *target.shape[1:]) or target.shape[0] % count:
            raise BundleError(
                f"part {index} of {output} has shape {source.shape}, wanted one of {count} equal "
                f"parts of {target.shape}"
            )
        self.copy(source, target[index * size : (index + 1) * size])

    def finish(self, node: Node) -> None:
        """Give back the memory of values that no later node takes."""
        for name in node.inputs:
            self._num_uses[name] -= 1
        for name in {*node.inputs, *node.outputs}:
            if self._num_uses.get(name, 0) == 0 and name in self._values:
                self._release(self._values.pop(name).block)

    def _hold(self, name: str, value: Value) -> None:
        if value.block is not None:
            value.block.num_names += 1
        self._values[name] = value

    def _release(self, block: Block | None) -> None:
        if block is None:
            return
        block.num_names -= 1
        if block.num_names == 0:
            self._memory.give_back(block)

    def _output(self, name: str, shape: tuple[int, ...]) -> Array:
        array = self._bound[name]
        if array.shape != shape:
            raise BundleError(f"the graph gives {name} of shape {shape}, bound is {array.shape}")
        self._values[name] = Value(array, False)
        return array
