"""Tables in place of rotary angles that a graph computes from positions.

A device that computes in bfloat16 holds whole numbers up to 256 only, so that an angle computed
from a later position is another position's. Here every cosine and sine is computed in float32
when the bundle is built, one row for each position, and the graph looks its row up.

Source: measured on OpenVINO 2026.4 with the inference precision bf16: keys of layer 0 at
positions above 256 were off by 15 % of their size, the values by 0.3 %.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from export.onnx_writer import IR_VERSION, OPSET, GraphWriter, used_nodes
from omruntime.errors import ExportError

_POSITIONS = "positions"
_FUNCTIONS = ("Cos", "Sin")


def tabulate_angles(writer: GraphWriter, num_positions: int) -> None:
    """Make every Cos and Sin of positions a lookup by position, in place.

    Raises:
        ExportError: An angle depends on more than a row's own position, or a position enters
            arithmetic in some other way, which would round it.
    """
    names = [n.output[0] for n in writer.nodes if n.op_type in _FUNCTIONS]
    tables = _evaluate(writer, names, num_positions) if names else {}
    nodes: list[NodeProto] = []
    for node in writer.nodes:
        table = tables.get(node.output[0])
        if table is None:
            nodes.append(node)
            continue
        constant = writer.constant(torch.from_numpy(table), f"{node.name}.table")
        lookup = [constant, _POSITIONS]
        nodes.append(
            helper.make_node("Gather", lookup, list(node.output), name=f"{node.name}.row", axis=0)
        )
    writer.nodes = nodes


def require_whole_positions(writer: GraphWriter, outputs: set[str]) -> None:
    """Refuse a graph that still makes floats of positions.

    Raises:
        ExportError: It does; the message names the node.
    """
    tainted = {_POSITIONS, "past_lens"}
    for node in used_nodes(writer.nodes, outputs):
        if not tainted.intersection(node.input):
            continue
        is_float = node.op_type == "Cast" and node.attribute[0].i == TensorProto.FLOAT
        if is_float:
            raise ExportError(
                f"{node.name} computes with positions, which bfloat16 rounds from 257 on; build "
                f"this model with --weights float32"
            )
        if node.op_type in ("Reshape", "Unsqueeze", "Squeeze", "Cast", "Add", "Sub", "Expand"):
            tainted.update(node.output)


def _evaluate(
    writer: GraphWriter, names: list[str], num_positions: int
) -> Mapping[str, NDArray[np.float32]]:
    """The named values at every position, each [num_positions, width]."""
    nodes = used_nodes(writer.nodes, set(names))
    model = _model(writer, nodes, names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    positions = np.arange(num_positions, dtype=np.int32)[None]
    values = session.run(names, {_POSITIONS: positions})
    for name, value in zip(names, values, strict=True):
        if value.shape[:-1] != positions.shape:
            raise ExportError(
                f"the angle {name} has shape {value.shape}, wanted one row for each position; "
                f"build this model with --weights float32"
            )
    return {name: value[0] for name, value in zip(names, values, strict=True)}


def _model(writer: GraphWriter, nodes: list[NodeProto], names: list[str]) -> onnx.ModelProto:
    produced = {name for node in nodes for name in node.output}
    constants = []
    for name in dict.fromkeys(name for node in nodes for name in node.input):
        if name in produced or name == _POSITIONS:
            continue
        tensor = writer.constant_tensor(name)
        if tensor is None:
            raise ExportError(
                f"angles of this model depend on {name} besides positions, so they cannot stand "
                f"in a table; build it with --weights float32"
            )
        constants.append(numpy_helper.from_array(tensor.numpy(), name))
    graph = helper.make_graph(
        nodes,
        "angles",
        [helper.make_tensor_value_info(_POSITIONS, TensorProto.INT32, [1, None])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names],
        constants,
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
