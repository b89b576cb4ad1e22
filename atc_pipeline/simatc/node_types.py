"""Types and shapes of all values of a graph for one gear, node by node.

Owns what onnx's inference lacks: the npu operators, MatMul's attributes transA and transB, and
the values of small integer tensors, which are the shapes and limits of other nodes. atc folds
them in the same way when it compiles a gear.

Source: hicann/ops-nn matmul/mat_mul_v3/framework/matmul_onnx_plugin.cpp (transA, transB),
norm/rms_norm/framework/npu_rms_norm_onnx_plugin.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    defs,
    helper,
    numpy_helper,
    shape_inference,
)
from onnx.reference import ReferenceEvaluator

from atc_pipeline.op_table import DEFAULT_DOMAIN
from atc_pipeline.simatc.model_checks import graph_inputs
from atc_pipeline.simatc.refusal import NotSimulatedError
from atc_pipeline.simatc.shapes import Shapes

# Tensors that can be a shape, a limit or an axis.
_MAX_FOLDED_ELEMENTS = 256
_FOLDED_TYPES = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})
_LIKE_INPUT = frozenset({"NPURmsNorm", "NPURotaryMul"})
_TRANSPOSED = {"transA": 0, "transB": 1}


@dataclass(frozen=True, slots=True)
class ValueType:
    """A value's element type, a number of `TensorProto.DataType`, and its shape."""

    dtype: int
    dims: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes without padding."""
        itemsize = helper.tensor_dtype_to_np_dtype(self.dtype).itemsize
        return math.prod(self.dims) * int(itemsize)


def infer_types(model: ModelProto, shapes: Shapes) -> Mapping[str, ValueType]:
    """The types of all values whose shape is known, by name.

    Args:
        shapes: Of the graph's inputs; those that are absent have fixed shapes.
    """
    inference = _Inference(model)
    for value in graph_inputs(model.graph):
        tensor_type = value.type.tensor_type
        dims = shapes.get(value.name) or [d.dim_value for d in tensor_type.shape.dim]
        inference.types[value.name] = helper.make_tensor_type_proto(tensor_type.elem_type, dims)
    for node in model.graph.node:
        inference.add(node)
    known = {name: _plain(value) for name, value in inference.types.items()}
    return {name: value for name, value in known.items() if value is not None}


def require_types(types: Mapping[str, ValueType], graph: GraphProto) -> list[ValueType]:
    """The outputs' types.

    Raises:
        NotSimulatedError: One has no shape that follows from the inputs' shapes. atc refuses
            gears then, or makes an OM with open shapes.
    """
    missing = [value.name for value in graph.output if value.name not in types]
    if missing:
        raise NotSimulatedError(
            f"the shape of output {missing[0]!r} does not follow from the inputs' shapes; OMs "
            f"with open shapes are not simulated"
        )
    return [types[value.name] for value in graph.output]


class _Inference:
    """Types, and values of small integer tensors, as far as they are known."""

    def __init__(self, model: ModelProto) -> None:
        self.types: dict[str, TypeProto] = {}
        self._values: dict[str, NDArray[Any]] = {}
        self._tensors: dict[str, TensorProto] = {}
        self._opsets = list(model.opset_import)
        self._versions = {o.domain or DEFAULT_DOMAIN: o.version for o in self._opsets}
        self._ir_version = model.ir_version
        for tensor in model.graph.initializer:
            self.types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            is_small = math.prod(tensor.dims) <= _MAX_FOLDED_ELEMENTS
            if is_small and tensor.data_location != TensorProto.EXTERNAL:
                self._note(tensor.name, numpy_helper.to_array(tensor))

    def add(self, node: NodeProto) -> None:
        """Find out what is known of a node's outputs; its inputs came before."""
        if node.op_type in _LIKE_INPUT:
            self._like_input(node)
            return
        types = {name: self.types[name] for name in node.input if name in self.types}
        plain = _without_transposition(node, types)
        try:
            self.types.update(self._infer(plain, types))
        except (defs.SchemaError, shape_inference.InferenceError, RuntimeError, ValueError):
            return  # what stays unknown is reported where it is needed
        self._fold(plain)

    def _infer(self, node: NodeProto, types: dict[str, TypeProto]) -> Mapping[str, TypeProto]:
        version = self._versions.get(node.domain or DEFAULT_DOMAIN, 0)
        schema = defs.get_schema(node.op_type, version, node.domain)
        values = {name: self._tensors[name] for name in node.input if name in self._tensors}
        found: Mapping[str, TypeProto] = shape_inference.infer_node_outputs(
            schema, node, types, values, opset_imports=self._opsets, ir_version=self._ir_version
        )
        return found

    def _like_input(self, node: NodeProto) -> None:
        source = self.types.get(node.input[0])
        if source is None:
            return
        self.types[node.output[0]] = source
        if len(node.output) > 1:
            dims = _dims(source)
            if dims is not None:
                rstd = helper.make_tensor_type_proto(TensorProto.FLOAT, [*dims[:-1], 1])
                self.types[node.output[1]] = rstd

    def _fold(self, node: NodeProto) -> None:
        """Compute small integer outputs whose inputs are known; Shape needs types alone."""
        (name, *others) = node.output
        known = _plain(self.types[name]) if name in self.types else None
        if others or known is None or known.dtype not in _FOLDED_TYPES:
            return
        if math.prod(known.dims) > _MAX_FOLDED_ELEMENTS:
            return
        if node.op_type == "Shape":
            self._note(name, self._shape_of(node))
        elif all(i in self._values for i in node.input if i):
            inputs = {i: self._values[i] for i in node.input if i}
            self._note(name, _evaluate(node, self._opsets, inputs))

    def _shape_of(self, node: NodeProto) -> NDArray[Any] | None:
        dims = _dims(self.types[node.input[0]]) if node.input[0] in self.types else None
        ends = {a.name: a.i for a in node.attribute}
        if dims is None:
            return None
        return np.array(dims[ends.get("start", 0) : ends.get("end", len(dims))], np.int64)

    def _note(self, name: str, value: NDArray[Any] | None) -> None:
        if value is not None:
            self._values[name] = value
            self._tensors[name] = numpy_helper.from_array(value, name)


def _without_transposition(node: NodeProto, types: dict[str, TypeProto]) -> NodeProto:
    """A MatMul as ONNX knows it, with the types of its operands turned instead."""
    turned = [a.name for a in node.attribute if a.name in _TRANSPOSED and a.i]
    if node.op_type != "MatMul" or not node.attribute:
        return node
    plain = helper.make_node("MatMul", ["0", "1"], node.output)
    operands = {str(i): types[name] for i, name in enumerate(node.input) if name in types}
    for name in turned:
        key = str(_TRANSPOSED[name])
        dims = _dims(operands[key]) if key in operands else None
        if dims is not None and len(dims) > 1:
            element = operands[key].tensor_type.elem_type
            operands[key] = helper.make_tensor_type_proto(element, [*dims[:-2], dims[-1], dims[-2]])
    types.clear()
    types.update(operands)
    return plain


def _evaluate(
    node: NodeProto, opsets: list[Any], inputs: Mapping[str, NDArray[Any]]
) -> NDArray[Any] | None:
    try:
        # Alone a node does not know its opset, so it gets a graph of its own.
        graph = helper.make_graph(
            [node],
            "folded",
            [
                helper.make_tensor_value_info(name, _element(v), v.shape)
                for name, v in inputs.items()
            ],
            [helper.make_empty_tensor_value_info(node.output[0])],
        )
        model = helper.make_model(graph, opset_imports=opsets)
        (value,) = ReferenceEvaluator(model).run(None, dict(inputs))
    except Exception:  # the evaluator raises whatever an operator's code does
        return None
    return np.asarray(value)


def _element(value: NDArray[Any]) -> int:
    return int(helper.np_dtype_to_tensor_dtype(value.dtype))


def _dims(value: TypeProto) -> tuple[int, ...] | None:
    """The dimensions, when all of them are known."""
    shape = value.tensor_type.shape
    if not value.tensor_type.HasField("shape"):
        return None
    if not all(dim.HasField("dim_value") for dim in shape.dim):
        return None
    return tuple(dim.dim_value for dim in shape.dim)


def _plain(value: TypeProto) -> ValueType | None:
    dims = _dims(value)
    return None if dims is None else ValueType(value.tensor_type.elem_type, dims)
