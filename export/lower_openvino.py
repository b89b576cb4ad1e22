"""Lowering for the `openvino` profile, after `lower_cpu.py`: what is stored in fewer bits.

Owns the types of matrices, pool and new keys and values in the graph. All arithmetic of the graph
stays float32 on paper; the device chooses what it computes in. What must not be rounded is taken
out of its reach in `angle_tables.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import NodeProto, TensorProto, helper

from export.angle_tables import require_whole_positions, tabulate_angles
from export.onnx_writer import GraphWriter
from export.stored_matrices import StoredMatrices
from export.weight_format import WeightFormat
from omruntime.manifest import TensorSpec

_POOL_PREFIX = "kv_pool"


@dataclass(frozen=True, slots=True)
class Storage:
    """How a graph keeps what it reads.

    Attributes:
        num_positions: Rows of the tables of angles.
    """

    weights: WeightFormat
    num_positions: int


def lower_openvino(
    writer: GraphWriter, storage: Storage, outputs: Mapping[str, TensorSpec]
) -> dict[str, TensorSpec]:
    """Rewrite the writer's nodes in place.

    Args:
        outputs: Value name to how the graph's output is called and shaped.

    Returns:
        The same for the new nodes.

    Raises:
        ExportError: The model computes with positions in a way that bfloat16 would round.
    """
    StoredMatrices(writer, storage.weights).rewrite()
    tabulate_angles(writer, storage.num_positions)
    require_whole_positions(writer, set(outputs))
    _widen_gathered(writer)
    return {_narrowed(writer, name, spec): spec for name, spec in outputs.items()}


def _widen_gathered(writer: GraphWriter) -> None:
    """Gather blocks as they are stored, then compute with them as the rest of the graph does."""
    nodes: list[NodeProto] = []
    for node in writer.nodes:
        nodes.append(node)
        if node.op_type == "Gather" and node.input[0].startswith(_POOL_PREFIX):
            output, node.output[0] = node.output[0], f"{node.output[0]}.stored"
            nodes.append(
                helper.make_node(
                    "Cast",
                    [node.output[0]],
                    [output],
                    name=f"{node.name}.widened",
                    to=TensorProto.FLOAT,
                )
            )
    writer.nodes = nodes


def _narrowed(writer: GraphWriter, name: str, spec: TensorSpec) -> str:
    """The value of an output in the output's own type."""
    if spec.dtype != "bfloat16":
        return name
    return writer.emit("Cast", [name], to=TensorProto.BFLOAT16)
