"""Write a MODEL_DEF partition: the inverse of `model_def.py`.

Source: hicann/ge graph_metadef/proto/ge_ir.proto.
"""

from __future__ import annotations

from collections.abc import Iterable

from omruntime.om_file.attributes import Attributes, pack_attributes
from omruntime.om_file.model_def import TYPE_NAMES, Op, OpTensor
from omruntime.om_file.wire import bytes_field, packed_field, varint_field

TYPE_NUMBERS = {name: number for number, name in TYPE_NAMES.items()}


def pack_model(
    name: str, version: int, graphs: Iterable[bytes], attributes: Attributes
) -> tuple[bytes, ...]:
    """The partition in chunks, from graphs of `pack_graph`, the main one first."""
    head = bytes_field(1, name) + (varint_field(2, version) if version else b"")
    return (
        head,
        *(bytes_field(7, graph) for graph in graphs),
        pack_attributes(11, attributes),
    )


def pack_graph(name: str, ops: Iterable[bytes]) -> bytes:
    """A graph from operators of `pack_op`."""
    return bytes_field(1, name) + b"".join(bytes_field(6, op) for op in ops)


def pack_op(op: Op, subgraph_names: Iterable[str] = ()) -> bytes:
    """One operator; its attributes are written without a dictionary."""
    return b"".join(
        (
            bytes_field(1, op.name),
            bytes_field(2, op.type),
            *(bytes_field(5, name) for name in op.inputs),
            pack_attributes(10, op.attributes),
            *(bytes_field(24, name) for name in op.src_names),
            packed_field(25, op.src_indexes),
            *(bytes_field(33, _pack_desc(desc)) for desc in op.input_descs),
            *(bytes_field(34, _pack_desc(desc)) for desc in op.output_descs),
            *(bytes_field(35, name) for name in subgraph_names),
        )
    )


def _pack_desc(desc: OpTensor) -> bytes:
    return b"".join(
        (
            varint_field(2, desc.dtype),
            bytes_field(3, packed_field(1, desc.dims)),
            bytes_field(4, desc.layout),
            varint_field(10, desc.size_bytes),
        )
    )
