"""GraphWriter: collects nodes and constants of one ONNX graph and writes it to two files.

Owns names, common subexpressions, unused nodes and the bytes on disk. Knows nothing about torch
operators; that is `aten_ops.py`. The same calls give the same bytes: names come from the caller
and a counter, nothing from addresses, times or paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import torch
from onnx import NodeProto, TensorProto, helper
from torch import Tensor

from omruntime.manifest import TensorSpec

OPSET = 18
IR_VERSION = 8
# Constants at least this large go to the weights file. ONNX Runtime maps files by pages.
_EXTERNAL_BYTES = 1024
_PAGE_BYTES = 4096

Attribute = int | float | str | Sequence[int]

_ONNX_TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.float64: TensorProto.DOUBLE,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.int8: TensorProto.INT8,
    torch.uint8: TensorProto.UINT8,
    torch.bool: TensorProto.BOOL,
}


def onnx_type(dtype: torch.dtype) -> int:
    """The ONNX element type of a torch dtype."""
    return int(_ONNX_TYPES[dtype])


@dataclass(frozen=True, slots=True)
class _Constant:
    """A constant as it is stored; `tensor` is converted when it is written, not before."""

    name: str
    tensor: Tensor
    dtype: torch.dtype


class GraphWriter:
    """One ONNX graph under construction.

    Attributes:
        scope: Prefix of the names of nodes to come.
        nodes: In an order in which they can run.
        sizes: Of traced values, by name; None where symbolic.
    """

    def __init__(self) -> None:
        self.scope = ""
        self.nodes: list[NodeProto] = []
        self.sizes: dict[str, tuple[int | None, ...]] = {}
        self._names: set[str] = set()
        self._by_expression: dict[tuple[object, ...], list[str]] = {}
        self._constants: dict[str, _Constant] = {}
        self._by_content: dict[tuple[object, ...], str] = {}

    def emit(self, op_type: str, inputs: Sequence[str], **attributes: Attribute) -> str:
        """Add a node with one output, or find the equal one; returns the output's name."""
        return self._add(("", op_type), inputs, 1, attributes)[0]

    def emit_many(
        self, op_type: str, inputs: Sequence[str], num_outputs: int, **attributes: Attribute
    ) -> list[str]:
        """As `emit` for a node with several outputs."""
        return self._add(("", op_type), inputs, num_outputs, attributes)

    def emit_foreign(
        self, domain: str, op_type: str, inputs: Sequence[str], num_outputs: int
    ) -> list[str]:
        """As `emit_many` for an operator of another domain than ONNX's own."""
        return self._add((domain, op_type), inputs, num_outputs, {})

    def _add(
        self,
        operator: tuple[str, str],
        inputs: Sequence[str],
        num_outputs: int,
        attributes: Mapping[str, Attribute],
    ) -> list[str]:
        frozen = tuple(
            (k, v if isinstance(v, int | float | str) else tuple(v))
            for k, v in sorted(attributes.items())
        )
        expression = (operator, tuple(inputs), frozen, num_outputs)
        if expression not in self._by_expression:
            domain, op_type = operator
            name = self._unique(f"{self.scope}/{op_type}" if self.scope else op_type)
            outputs = [f"{name}:{i}" for i in range(num_outputs)]
            node = helper.make_node(op_type, list(inputs), outputs, name=name, domain=domain)
            node.attribute.extend(helper.make_attribute(k, v) for k, v in frozen)
            self.nodes.append(node)
            self._by_expression[expression] = outputs
        return self._by_expression[expression]

    def constant(self, tensor: Tensor, hint: str, dtype: torch.dtype | None = None) -> str:
        """The name of a constant; equal small ones, and views of equal storage, are one.

        Args:
            dtype: To store it as; float16 clips to its range.
        """
        tensor, dtype = tensor.detach(), dtype or tensor.dtype
        if tensor.numel() * tensor.element_size() < _EXTERNAL_BYTES:
            tensor = convert(tensor, dtype)
            key: tuple[object, ...] = (dtype, tuple(tensor.shape), _bytes(tensor))
        else:
            key = (dtype, tuple(tensor.shape), tensor.stride(), tensor.data_ptr())
        if key not in self._by_content:
            name = self._unique(hint)
            # Keeping the tensor keeps its address from being used again.
            self._constants[name] = _Constant(name, tensor, dtype)
            self._by_content[key] = name
        return self._by_content[key]

    def constant_tensor(self, name: str) -> Tensor | None:
        """The value of a constant; None for other values."""
        constant = self._constants.get(name)
        return None if constant is None else constant.tensor

    def ints(self, values: Sequence[int]) -> str:
        """A constant int64 list, as shapes and axes are given."""
        return self.constant(torch.tensor(list(values), dtype=torch.int64), "ints")

    def save(
        self,
        path: Path,
        weights_path: Path,
        inputs: Sequence[TensorSpec],
        outputs: Mapping[str, TensorSpec],
    ) -> None:
        """Write the model, and the large constants into `weights_path` beside it.

        Args:
            outputs: Value name to how the graph's output is called and shaped.
        """
        self._rename_outputs(outputs)
        wanted = {spec.name for spec in outputs.values()}
        nodes = used_nodes(self.nodes, wanted)
        used = {name for node in nodes for name in node.input}
        constants = [c for c in self._constants.values() if c.name in used]
        with weights_path.open("wb") as file:
            initializers = [_write_constant(c, file, weights_path.name) for c in constants]
        graph = helper.make_graph(
            nodes,
            "step",
            [_value_info(spec) for spec in inputs],
            [_value_info(spec) for spec in outputs.values()],
            initializers,
        )
        model = helper.make_model(
            graph, opset_imports=_opsets(nodes), ir_version=IR_VERSION, producer_name="omserve"
        )
        path.write_bytes(model.SerializeToString(deterministic=True))

    def _rename_outputs(self, outputs: Mapping[str, TensorSpec]) -> None:
        for node in self.nodes:
            for names in (node.input, node.output):
                for index, name in enumerate(names):
                    if name in outputs:
                        names[index] = outputs[name].name

    def _unique(self, base: str) -> str:
        name, count = base, 1
        while name in self._names:
            name, count = f"{base}_{count}", count + 1
        self._names.add(name)
        return name


def _opsets(nodes: Sequence[NodeProto]) -> list[onnx.OperatorSetIdProto]:
    domains = sorted({node.domain for node in nodes} - {""})
    return [helper.make_opsetid("", OPSET), *(helper.make_opsetid(d, 1) for d in domains)]


def used_nodes(nodes: Sequence[NodeProto], wanted: set[str]) -> list[NodeProto]:
    """The nodes that the wanted values depend on, in the given order."""
    needed = set(wanted)
    kept = []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    return kept[::-1]


def convert(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor as another type; float16 clips to its range."""
    if tensor.dtype == dtype:
        return tensor
    if dtype is torch.float16:
        limits = torch.finfo(dtype)
        return tensor.clamp(limits.min, limits.max).to(dtype)
    return tensor.to(dtype)


def _bytes(tensor: Tensor) -> bytes:
    contiguous = tensor.contiguous()
    if contiguous.dtype is torch.bfloat16:
        contiguous = contiguous.view(torch.int16)
    return bytes(np.ascontiguousarray(contiguous.numpy()).data.tobytes())


def _write_constant(constant: _Constant, file: BinaryIO, location: str) -> TensorProto:
    tensor = convert(constant.tensor, constant.dtype)
    proto = TensorProto(
        name=constant.name, data_type=onnx_type(tensor.dtype), dims=list(tensor.shape)
    )
    content = _bytes(tensor)
    if len(content) < _EXTERNAL_BYTES:
        proto.raw_data = content
        return proto
    offset = -(-file.tell() // _PAGE_BYTES) * _PAGE_BYTES
    file.write(bytes(offset - file.tell()))
    file.write(content)
    proto.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", len(content))):
        proto.external_data.add(key=key, value=str(value))
    return proto


def _value_info(spec: TensorSpec) -> onnx.ValueInfoProto:
    is_bfloat16 = spec.dtype == "bfloat16"  # unknown to NumPy
    element = (
        TensorProto.BFLOAT16
        if is_bfloat16
        else helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    )
    return helper.make_tensor_value_info(spec.name, element, list(spec.shape))
