"""From a checked command line to a simulated OM.

Owns the order of steps and what goes into which partition. The program is the model as it came,
its npu operators spelled out, in the types that it has: precision flags change nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import GraphProto, ModelProto, ValueInfoProto

from atc_pipeline.op_table import load_operator_table
from atc_pipeline.simatc.ai_cpu import ai_cpu_operators
from atc_pipeline.simatc.command_line import CompileRequest
from atc_pipeline.simatc.constants import (
    PlacedConstants,
    place_constants,
    replacing,
    take_constants,
    write_files,
)
from atc_pipeline.simatc.description import GearTypes, aligned, describe, infer_gears
from atc_pipeline.simatc.ge_model import GraphSource, pack_graphs
from atc_pipeline.simatc.model_checks import check_inputs, check_model, dims_of, graph_inputs
from atc_pipeline.simatc.onnx_file import read_onnx
from atc_pipeline.simatc.refusal import NotSimulatedError
from atc_pipeline.simatc.shapes import ShapeRequest, parse_shapes
from omruntime.om_file import (
    InoutInfo,
    OmHeader,
    Partition,
    PartitionType,
    pack_inout_info,
    write_om,
)
from omruntime.om_file.attributes import AttrValue
from omruntime.om_file.model_pack import pack_model
from omruntime.om_file.simulated import NAME_PREFIX, pack_simulated_program
from omruntime.om_file.wire import varint_field

VERSION = "simatc 1"
_MODEL_VERSION = 2
_MAX_NAME_BYTES = 31
_MAX_PROTOBUF_BYTES = 2**31 - 1


def compile_om(request: CompileRequest, expand: Callable[[ModelProto], ModelProto]) -> Path:
    """Write the OM and the weight files beside it; returns the OM's path.

    Args:
        expand: Spells out the npu operators.

    Raises:
        AtcRefusalError: atc would refuse the model or its shapes.
        NotSimulatedError: atc may take them, simatc does not.
        OSError: A file cannot be written.
    """
    shapes = parse_shapes(request.input_shape, request.dynamic_dims)
    model = read_onnx(request.model)
    check_model(model, load_operator_table())
    check_inputs(model, shapes)
    _name_nodes(model.graph)
    shapes = _complete(shapes, model.graph)
    program = expand(model)
    del program.graph.value_info[:]
    for value in graph_inputs(program.graph):
        _fix_dims(value, shapes.input_shapes[value.name])
    types = infer_gears(model, shapes)
    info = describe(model.graph, shapes, types)
    folder = request.model.parent
    constants = take_constants(program.graph, folder)
    placed = place_constants(constants, request.external_weight, request.output.name)
    content = _Content(request, model, shapes, types, info, placed, _serialize(program))
    om_path = request.output.with_name(request.output.name + ".om")
    write_files(placed, om_path.parent)
    with replacing(om_path) as stream:
        write_om(stream, OmHeader(content.name), [content.partitions()])
    return om_path


@dataclass(frozen=True, slots=True)
class _Content:
    """All that goes into the OM."""

    request: CompileRequest
    model: ModelProto
    shapes: ShapeRequest
    types: GearTypes
    info: InoutInfo
    placed: PlacedConstants
    program: bytes

    @property
    def name(self) -> str:
        """The model's name, which says that it is simulated."""
        name = f"{NAME_PREFIX}_{self.request.output.name}".encode()[:_MAX_NAME_BYTES]
        return name.decode(errors="ignore")

    def partitions(self) -> list[Partition]:
        program = pack_simulated_program(self.program, self.placed.weights, self.placed.inside)
        weights = Partition(PartitionType.WEIGHTS_DATA, program)
        tasks = self._tasks()
        attributes = self._attributes((weights.size_bytes, 0, 0, len(tasks), 0))
        graph = self.model.graph
        source = GraphSource(
            graph,
            load_operator_table(),
            self.info.inputs,
            self.info.outputs,
            self.placed.weights,
        )
        graphs = pack_graphs(source, self.shapes)
        return [
            Partition(PartitionType.MODEL_INOUT_INFO, (pack_inout_info(self.info),)),
            Partition(
                PartitionType.MODEL_DEF,
                pack_model(self.name, _MODEL_VERSION, graphs, attributes),
            ),
            weights,
            Partition(PartitionType.TASK_INFO, (tasks,)),
        ]

    def _attributes(self, part_sizes: tuple[int, ...]) -> dict[str, AttrValue]:
        soc = self.request.soc_version
        attributes: dict[str, AttrValue] = {
            "memory_size": self._memory_bytes,
            "weight_size": self._weight_bytes,
            "zero_copy_memory_size": self._io_bytes,
            "stream_num": 1,
            "event_num": 0,
            "attr_model_out_nodes_name": tuple(tensor.name for tensor in self.info.outputs),
            "om_info_list": part_sizes,
            "atc_cmdline": " ".join((NAME_PREFIX, *self.request.argv)),
            "atc_version": VERSION,
            "opp_version": VERSION,
            "soc_version": soc,
            "framework_type": "Onnx",
            "core_type": "AiCore",
        }
        on_ai_cpu = ai_cpu_operators(self.model, self.request.model, soc)
        return attributes | ({"needCheckCpu": on_ai_cpu} if on_ai_cpu else {})

    @property
    def _io_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in (*self.info.inputs, *self.info.outputs))

    @property
    def _memory_bytes(self) -> int:
        """Buffers of inputs and outputs count, as in atc's own figure."""
        return self._io_bytes + self.types.peak_bytes

    @property
    def _weight_bytes(self) -> int:
        return sum(aligned(w.size_bytes) for w in self.placed.weights if not w.file)

    def _tasks(self) -> bytes:
        """A ModelTaskDef without tasks. Source: hicann/ge graph_metadef/proto/task.proto."""
        return (
            varint_field(11, self._memory_bytes)
            + varint_field(12, 1)
            + varint_field(14, self._weight_bytes)
        )


def _name_nodes(graph: GraphProto) -> None:
    """Give nodes without a name the one that atc gives them: type and number."""
    for number, node in enumerate(graph.node):
        node.name = node.name or f"{node.op_type}_{number}"


def _complete(shapes: ShapeRequest, graph: GraphProto) -> ShapeRequest:
    """With the inputs that --input_shape leaves to the model."""
    own = {v.name: dims_of(v) for v in graph_inputs(graph) if v.name not in shapes.input_shapes}
    return ShapeRequest({**shapes.input_shapes, **own}, shapes.gears)


def _fix_dims(value: ValueInfoProto, dims: Sequence[int]) -> None:
    """Write the dimensions that are fixed now into the program's input."""
    for dim, size in zip(value.type.tensor_type.shape.dim, dims, strict=True):
        if size != -1:
            dim.dim_value = size


def _serialize(program: ModelProto) -> bytes:
    size = program.ByteSize()
    if size > _MAX_PROTOBUF_BYTES:
        raise NotSimulatedError(
            f"the program without its large constants has {size} bytes, which is more than a "
            f"protobuf holds"
        )
    return program.SerializeToString(deterministic=True)
