"""A step graph as the native device sees it: nodes over named values."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Node:
    """One operator.

    Attributes:
        op: As ONNX names it; of another domain than its own, `domain.Name`.
        attributes: Numbers, texts, tuples of them, and arrays; what a fusion made may hold more.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Graph:
    """Nodes in an order in which they can run.

    Attributes:
        constants: Arrays by name; bfloat16 as its bits, uint16.
        inputs, outputs: Names of what comes and goes.
        files: What large constants look into.
    """

    nodes: list[Node]
    constants: dict[str, Array]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    files: tuple[mmap.mmap, ...] = ()

    def producers(self) -> dict[str, Node]:
        """Which node makes a value."""
        return {name: node for node in self.nodes for name in node.outputs}

    def users(self) -> dict[str, list[Node]]:
        """Which nodes take a value, once for each time."""
        users: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                users.setdefault(name, []).append(node)
        return users

    def drop_unused(self) -> None:
        """Leave out nodes that no output needs."""
        needed, kept = set(self.outputs), []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.inputs)
                kept.append(node)
        self.nodes = kept[::-1]

    def release_pages(self) -> None:
        """Give back the memory that constants in files took; what is read again is mapped anew."""
        for file in self.files:
            file.madvise(mmap.MADV_DONTNEED)

    def replace(self, gone: Iterable[Node], anchor: Node, new: Node) -> None:
        """Put a node where `anchor` stands, in place of it and of others."""
        ids = {id(node) for node in gone}
        self.nodes = [
            new if node is anchor else node
            for node in self.nodes
            if node is anchor or id(node) not in ids
        ]


def scalar(array: Array | None) -> float | None:
    """The one number of a constant, or None."""
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def is_integer(array: Array) -> bool:
    """Whether an array counts."""
    return bool(np.issubdtype(array.dtype, np.integer))
