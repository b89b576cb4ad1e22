"""LintGraph: a model as the rules look at it.

Owns the reading of the file and the walk over nodes and tensors. Weights in files of their own
are never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from atc_pipeline.lint.gears import Gears
from atc_pipeline.lint.value_types import ValueType, infer_value_types, subgraphs
from omruntime.errors import ConfigError
from omruntime.om_file.header import OM_START

DEFAULT_DOMAIN = "ai.onnx"
# Their results depend on shapes alone, which are constants in every gear.
_SHAPE_OPS = frozenset({"Shape", "Size"})
_UNKNOWN = ValueType(TensorProto.UNDEFINED, None)


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node and where it lies.

    Attributes:
        where: Its name, with the names of the nodes around it.
        depth: 0 in the main graph, more inside of branches.
    """

    node: NodeProto
    where: str
    depth: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor with data: an initializer, or the value of a Constant."""

    tensor: TensorProto
    where: str
    depth: int


class LintGraph:
    """One model; immutable as far as the rules are concerned.

    Attributes:
        path: The ONNX file, whose folder external data is relative to.
        gears: None where no buckets are known.
    """

    def __init__(self, model: ModelProto, path: Path, gears: Gears | None = None) -> None:
        self.model = model
        self.path = path
        self.gears = gears
        self.nodes = tuple(_walk(model.graph, "", 0))
        self._largest = gears.largest_sizes() if gears is not None else {}

    @cached_property
    def opsets(self) -> Mapping[str, int]:
        """The declared version of each domain; the default domain is `ai.onnx`."""
        return {o.domain or DEFAULT_DOMAIN: o.version for o in self.model.opset_import}

    @cached_property
    def functions(self) -> frozenset[tuple[str, str]]:
        """Domain and name of the functions that the model itself defines."""
        return frozenset((f.domain or DEFAULT_DOMAIN, f.name) for f in self.model.functions)

    @cached_property
    def initializer_names(self) -> frozenset[str]:
        """Of the main graph."""
        return frozenset(t.name for t in self.model.graph.initializer)

    @property
    def inputs(self) -> list[onnx.ValueInfoProto]:
        """The graph's inputs without those that are initializers."""
        return [v for v in self.model.graph.input if v.name not in self.initializer_names]

    @property
    def inference_error(self) -> str:
        """Why types and shapes are unknown; empty when they are known."""
        return self._inferred[1]

    def value(self, name: str) -> ValueType:
        """What is known of a value."""
        return self._inferred[0].get(name, _UNKNOWN)

    def dtype(self, name: str) -> int:
        """A number of `TensorProto.DataType`; 0 when unknown."""
        return self.value(name).dtype

    def sizes(self, name: str) -> tuple[int | None, ...] | None:
        """The shape with each symbol at its largest gear; None where that is unknown."""
        shape = self.value(name).shape
        if shape is None:
            return None
        return tuple(d if isinstance(d, int) else self._largest.get(d or "") for d in shape)

    def is_static(self, name: str) -> bool:
        """Whether a value is a constant in every gear: it stems from weights and shapes alone."""
        return name not in self._data_values

    def values(self) -> Iterator[str]:
        """All values with a known type, weights included."""
        return iter(self._inferred[0])

    def tensors(self) -> Iterator[StoredTensor]:
        """All tensors with data of their own, branches included."""
        yield from _initializers(self.model.graph, 0)
        for placed in self.nodes:
            for inner in subgraphs(placed.node):
                yield from _initializers(inner, placed.depth + 1)
            for attribute in placed.node.attribute:
                if attribute.type == AttributeProto.TENSOR:
                    yield StoredTensor(attribute.t, placed.where, placed.depth)

    @cached_property
    def _inferred(self) -> tuple[Mapping[str, ValueType], str]:
        return infer_value_types(self.model)

    @cached_property
    def _data_values(self) -> frozenset[str]:
        found = {value.name for value in self.inputs}
        _spread(self.model.graph, found)
        return frozenset(found)


def read_graph(path: Path, gears: Gears | None = None) -> LintGraph:
    """Read a model without its external data.

    Raises:
        ConfigError: The file is not there or is no ONNX model.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error}; wanted an ONNX file") from error
    if content.startswith(OM_START):
        raise ConfigError(
            f"{path} is an OM, wanted the ONNX file that it was compiled from; export-om inspect "
            f"shows what is in an OM"
        )
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's own class belongs to a library this package leaves out
        raise ConfigError(f"{path} is not an ONNX model: {error}") from error
    if not model.HasField("graph"):
        raise ConfigError(f"{path} is not an ONNX model: it holds no graph; wanted an ONNX file")
    return LintGraph(model, path, gears)


def attribute(node: NodeProto, name: str) -> AttributeProto | None:
    """An attribute by name; None when the node has none of it."""
    return next((a for a in node.attribute if a.name == name), None)


def type_name(dtype: int) -> str:
    """A data type for a message, such as `float16`."""
    if dtype == TensorProto.FLOAT:
        return "float32"
    names = {value: key for key, value in TensorProto.DataType.items()}
    return names.get(dtype, f"type {dtype}").lower()


def _walk(graph: GraphProto, prefix: str, depth: int) -> Iterator[GraphNode]:
    for node in graph.node:
        where = prefix + (node.name or _unnamed(node))
        yield GraphNode(node, where, depth)
        for inner in subgraphs(node):
            yield from _walk(inner, f"{where}/", depth + 1)


def _unnamed(node: NodeProto) -> str:
    output = next((name for name in node.output if name), "")
    return f"<unnamed, writes {output!r}>"


def _initializers(graph: GraphProto, depth: int) -> Iterator[StoredTensor]:
    for tensor in graph.initializer:
        yield StoredTensor(tensor, tensor.name, depth)


def _spread(graph: GraphProto, data: set[str]) -> None:
    """Add every value that depends on the content of one in `data`."""
    for node in graph.node:
        depends = any(name in data for name in node.input)
        for inner in subgraphs(node):
            _spread(inner, data)
            depends |= any(output.name in data for output in inner.output)
        if depends and node.op_type not in _SHAPE_OPS:
            data.update(name for name in node.output if name)
