"""The registry of operator translations, and how an emitter reads its node.

The emitters stand in `aten_ops.py` (arithmetic) and `aten_shapes.py` (moving data).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from export.translate import Emitter, tensor_of
from omruntime.errors import ExportError

EMITTERS: dict[str, Emitter] = {}


def aten(*names: str) -> Callable[[Emitter], Emitter]:
    """Register a translation under names of torch's operator table, with overloads."""

    def register(emitter: Emitter) -> Emitter:
        EMITTERS.update({f"aten.{name}": emitter for name in names})
        return emitter

    return register


def arguments_of(node: fx.Node) -> dict[str, object]:
    """All arguments by their schema names, defaults filled in."""
    schema = node.target._schema  # type: ignore[union-attr]
    bound: dict[str, object] = {}
    for index, argument in enumerate(schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        given = node.args[index] if index < len(node.args) else default
        bound[argument.name] = node.kwargs.get(argument.name, given)
    return bound


def fake(argument: object) -> torch.Tensor:
    """The fake tensor (shape, dtype) of an argument that is a node."""
    assert isinstance(argument, fx.Node)
    return tensor_of(argument)


def integer(argument: object) -> int:
    """An argument that must be a plain integer."""
    assert isinstance(argument, int)
    return argument


def axis_of(argument: object, rank: int) -> int:
    """A non-negative axis."""
    return integer(argument) % max(rank, 1)


def untranslated(node: fx.Node, how: str) -> ExportError:
    """An operator that is used in a way that no emitter has, such as `of a symbolic size`."""
    return ExportError(
        f"the model uses {node.target} {how}, which the exporter does not translate; "
        f"export/aten_ops.py and export/aten_shapes.py list the operators it does"
    )
