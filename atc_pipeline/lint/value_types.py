"""Element types and shapes of a graph's values, by onnx's shape inference.

Owns the preparation: weights are left out, so that a model of any size takes little memory, and
the npu operators that keep their input's shape get a stand-in that says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    shape_inference,
)

# Tensors that can be a shape, an axis or an index; inference reads their values.
_SMALL_ELEMENTS = 64
_LIKE_INPUT = {"NPURmsNorm", "NPURotaryMul", "NPURotaryPositionEmbedding", "NPUGeluV2"}
_NPU_DOMAIN = "npu"
_STAND_IN_OPSET = 18


@dataclass(frozen=True, slots=True)
class ValueType:
    """What is known of one value.

    Attributes:
        dtype: A number of `TensorProto.DataType`; 0 when unknown.
        shape: None when the rank is unknown; a dimension is a number, a symbol or None.
    """

    dtype: int
    shape: tuple[int | str | None, ...] | None


def infer_value_types(model: ModelProto) -> tuple[Mapping[str, ValueType], str]:
    """The types of all values by name, and why inference failed, or an empty text.

    After a failure the declared types are still there.
    """
    light = _without_weights(model)
    try:
        inferred = shape_inference.infer_shapes(light, data_prop=True)
    except (shape_inference.InferenceError, RuntimeError, ValueError, TypeError) as error:
        return _collect(light.graph), str(error).strip().splitlines()[0]
    return _collect(inferred.graph), ""


def _without_weights(model: ModelProto) -> ModelProto:
    light = ModelProto(ir_version=model.ir_version)
    light.opset_import.extend(_complete_opsets(model))
    light.graph.name = model.graph.name or "graph"
    source, graph = model.graph, light.graph
    graph.node.extend(_stand_in(node) for node in source.node)
    graph.input.extend(source.input)
    graph.output.extend(source.output)
    graph.value_info.extend(source.value_info)
    declared = {value.name for value in source.input}
    for tensor in source.initializer:
        if (
            tensor.data_location != TensorProto.EXTERNAL
            and _num_elements(tensor) <= _SMALL_ELEMENTS
        ):
            graph.initializer.add().CopyFrom(tensor)
        elif tensor.name not in declared:
            graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    return light


def _complete_opsets(model: ModelProto) -> list[onnx.OperatorSetIdProto]:
    """Those of the model; domains it forgot are added, a missing one is another rule's matter."""
    opsets = list(model.opset_import)
    known = {opset.domain or "ai.onnx" for opset in opsets}
    used = {node.domain or "ai.onnx" for node in model.graph.node} | {"ai.onnx"}
    for domain in sorted(used - known):
        version = _STAND_IN_OPSET if domain == "ai.onnx" else 1
        opsets.append(helper.make_opsetid("" if domain == "ai.onnx" else domain, version))
    return opsets


def _stand_in(node: NodeProto) -> NodeProto:
    if node.op_type in _LIKE_INPUT and node.input and node.output:
        return helper.make_node("Identity", node.input[:1], node.output[:1], name=node.name)
    return node


def _num_elements(tensor: TensorProto) -> int:
    count = 1
    for size in tensor.dims:
        count *= size
    return count


def _collect(graph: GraphProto) -> dict[str, ValueType]:
    found: dict[str, ValueType] = {}
    for inner in graphs_below(graph):
        for value in (*inner.value_info, *inner.input, *inner.output):
            if value.type.HasField("tensor_type"):
                found[value.name] = _value_type(value)
        for tensor in inner.initializer:
            found[tensor.name] = ValueType(tensor.data_type, tuple(tensor.dims))
    return found


def graphs_below(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and all graphs inside of its nodes."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from graphs_below(inner)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def _value_type(value: ValueInfoProto) -> ValueType:
    tensor_type = value.type.tensor_type
    if not tensor_type.HasField("shape"):
        return ValueType(tensor_type.elem_type, None)
    shape: list[int | str | None] = []
    for dim in tensor_type.shape.dim:
        kind = dim.WhichOneof("value")
        shape.append(dim.dim_value if kind == "dim_value" else dim.dim_param or None)
    return ValueType(tensor_type.elem_type, tuple(shape))
