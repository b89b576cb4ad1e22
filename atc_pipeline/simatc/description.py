"""The description of a simulated OM's inputs, outputs and gears.

Owns sizes and shapes: a buffer takes its largest gear, an axis that gears change shows -1.

Source: hicann/ge base/common/model/model_introduction.cc (the description),
compiler/graph/preprocess/multi_batch_copy_graph.cc (output shapes of gears).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, TensorProto, helper

from atc_pipeline.simatc.ge_model import output_names
from atc_pipeline.simatc.memory_plan import peak_bytes
from atc_pipeline.simatc.model_checks import graph_inputs
from atc_pipeline.simatc.node_types import ValueType, infer_types, require_types
from atc_pipeline.simatc.shapes import ShapeRequest
from omruntime.om_file import GEAR_INPUT, DataType, InoutInfo, TensorDesc

# So that sizes read as on a device. Source: CANN pyACL reference, acl.rt.malloc.
_SIZE_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class GearTypes:
    """The types of inputs and outputs, one entry for each gear.

    Attributes:
        peak_bytes: Work memory for intermediate values, in the gear that takes most.
    """

    inputs: tuple[Sequence[ValueType], ...]
    outputs: tuple[Sequence[ValueType], ...]
    peak_bytes: int


def infer_gears(model: ModelProto, shapes: ShapeRequest) -> GearTypes:
    """The types in every gear.

    Args:
        shapes: With every input of the graph.

    Raises:
        NotSimulatedError: An output's shape depends on data.
    """
    inputs, outputs, most = [], [], 0
    for gear_shapes in shapes.all_shapes:
        types = infer_types(model, gear_shapes)
        inputs.append([types[value.name] for value in graph_inputs(model.graph)])
        outputs.append(require_types(types, model.graph))
        most = max(most, peak_bytes(model.graph, types))
    return GearTypes(tuple(inputs), tuple(outputs), most)


def describe(graph: GraphProto, shapes: ShapeRequest, types: GearTypes) -> InoutInfo:
    """The description, the gear input last."""
    names = [value.name for value in graph_inputs(graph)]
    inputs = [
        _desc(name, gears, shapes.input_shapes[name])
        for name, gears in zip(names, zip(*types.inputs, strict=True), strict=True)
    ]
    outputs = [
        _desc(name, gears, _common_dims([t.dims for t in gears]))
        for name, gears in zip(output_names(graph), zip(*types.outputs, strict=True), strict=True)
    ]
    if not shapes.gears:
        return InoutInfo(tuple(inputs), tuple(outputs))
    gear = ValueType(TensorProto.INT32, (len(shapes.gears[0]),))
    return InoutInfo(
        (*inputs, _desc(GEAR_INPUT, [gear], gear.dims)),
        tuple(outputs),
        dim_gears=shapes.gears,
        output_shapes=tuple(_output_shapes(types)),
        input_order=tuple(shapes.input_shapes),
    )


def _output_shapes(types: GearTypes) -> list[str]:
    return [
        ",".join(map(str, (gear, index, *tensor.dims)))
        for gear, outputs in enumerate(types.outputs)
        for index, tensor in enumerate(outputs)
    ]


def _desc(name: str, gears: Sequence[ValueType], dims: tuple[int, ...]) -> TensorDesc:
    """A tensor whose buffer takes its largest gear."""
    dtype = helper.tensor_dtype_to_np_dtype(gears[0].dtype)
    size = max(aligned(tensor.size_bytes) for tensor in gears)
    return TensorDesc(name, DataType.of_numpy(dtype), dims, size)


def _common_dims(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """-1 where gears differ."""
    return tuple(sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=True))


def aligned(size: int) -> int:
    """A size in the steps of device buffers."""
    return -(-size // _SIZE_ALIGNMENT) * _SIZE_ALIGNMENT
