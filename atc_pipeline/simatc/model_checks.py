"""What atc's ONNX parser refuses in a model, by its codes.

Owns the checks; `export-om lint` says more, earlier and with remedies.

Source: hicann/ge parser/parser/onnx/{onnx_parser,onnx_constant_parser}.cc.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from atc_pipeline.op_table import DEFAULT_DOMAIN, OperatorTable
from atc_pipeline.simatc.refusal import AtcRefusalError, NotSimulatedError
from atc_pipeline.simatc.shapes import ShapeRequest

_DATA_KEYS = frozenset({"location", "offset", "length"})


def check_model(model: ModelProto, table: OperatorTable) -> None:
    """Check everything that does not depend on the command line.

    Raises:
        AtcRefusalError: The first thing that the parser would stop at.
    """
    if not graph_inputs(model.graph) or not model.graph.output:
        raise AtcRefusalError("E16001", "the graph has no inputs or no outputs")
    opsets = {o.domain or DEFAULT_DOMAIN: o.version for o in model.opset_import}
    names: set[str] = set()
    for node in _nodes(model.graph):
        _check_node(node, opsets, table)
        if node.name in names:
            raise AtcRefusalError("E13009", f"two operators have the name {node.name!r}")
        if node.name:
            names.add(node.name)
    for tensor in model.graph.initializer:
        _check_external_data(tensor)


def check_inputs(model: ModelProto, request: ShapeRequest) -> None:
    """Compare --input_shape with the graph's inputs.

    Raises:
        AtcRefusalError: An input is unknown, of another rank, or stays open.
    """
    inputs = {value.name: value for value in graph_inputs(model.graph)}
    nodes = {node.name for node in model.graph.node}
    for name, dims in request.input_shapes.items():
        if name not in inputs:
            code, what = ("E10017", "no input") if name in nodes else ("E10016", "not in the model")
            raise AtcRefusalError(code, f"--input_shape names {name!r}, which is {what}")
        if len(dims) != len(dims_of(inputs[name])):
            raise AtcRefusalError(
                "E10049", f"--input_shape gives {name!r} {len(dims)} dimensions, the model "
                f"{len(dims_of(inputs[name]))}"
            )  # fmt: skip
    for name, value in inputs.items():
        if name in request.input_shapes:
            continue
        if request.gears:
            raise AtcRefusalError(
                "E10001", f"--input_shape lacks the input {name!r}; gears want all"
            )
        if not all(dims_of(value)):
            raise AtcRefusalError(
                "E10001", f"input {name!r} has open dimensions; give --input_shape"
            )


def graph_inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """The inputs without those that are initializers."""
    constants = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in constants]


def dims_of(value: ValueInfoProto) -> tuple[int, ...]:
    """The dimensions of a graph input; 0 for symbolic ones."""
    dims = value.type.tensor_type.shape.dim
    return tuple(max(0, d.dim_value) if d.HasField("dim_value") else 0 for d in dims)


def _check_external_data(tensor: TensorProto) -> None:
    """Refuse keys that the parser reads as numbers, and paths that leave the model's folder."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return
    for entry in tensor.external_data:
        if entry.key != "location" and not entry.value.isdecimal():
            raise AtcRefusalError(
                "E10001", f"tensor {tensor.name!r}: external data {entry.key}={entry.value!r}, "
                f"wanted an integer; only {', '.join(sorted(_DATA_KEYS))} are known"
            )  # fmt: skip
    location = PurePosixPath(_location(tensor))
    if not location.parts or location.is_absolute() or ".." in location.parts:
        raise AtcRefusalError(
            "E10001", f"tensor {tensor.name!r}: external data at {str(location)!r}, wanted a path "
            f"below the model's folder"
        )  # fmt: skip


def _location(tensor: TensorProto) -> str:
    return next((e.value for e in tensor.external_data if e.key == "location"), "")


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """All nodes, those of branches included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _nodes(attribute.g)


def _check_node(node: NodeProto, opsets: dict[str, int], table: OperatorTable) -> None:
    domain = node.domain or DEFAULT_DOMAIN
    where = f"op [{node.name}], optype [{node.op_type}]"
    if domain not in opsets:
        raise AtcRefusalError("E19999", f"{where}: its domain {domain!r} is not in opset_import")
    if not table.is_registered(domain, opsets[domain], node.op_type):
        key = f"{domain}::{opsets[domain]}::{node.op_type}"
        raise AtcRefusalError("E16002", f"{where}: no parser is registered for {key}")
    if "" in node.output:
        raise AtcRefusalError("E19999", f"{where}: an output without a name feeds all empty inputs")
    if node.op_type == "Constant":
        _check_constant(node, where)


def _check_constant(node: NodeProto, where: str) -> None:
    value = next((a for a in node.attribute if a.name == "value"), None)
    if value is None:
        given = ", ".join(a.name for a in node.attribute)
        raise AtcRefusalError("E19999", f"{where}: it has {given or 'nothing'}, wanted value")
    if value.t.data_location == TensorProto.EXTERNAL:
        raise NotSimulatedError(f"{where}: a Constant node with external data is not simulated")
