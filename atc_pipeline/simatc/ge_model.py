"""MODEL_DEF of a simulated OM: the graph as atc would store it, as far as tools read it.

Owns the operators of the main graph and of one branch for each gear. They are for inspection
alone; what runs is the program in WEIGHTS_DATA.

Source: hicann/ge compiler/graph/passes/multi_batch/multi_batch_clone_pass.cc (gears: names,
Case, MapIndex), parser/parser/onnx/onnx_parser.cc (names, Const, FileConstant),
base/common/file_constant_utils (location, offset, length).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from onnx import GraphProto, NodeProto

from atc_pipeline.op_table import OperatorTable
from atc_pipeline.simatc.shapes import ShapeRequest
from omruntime.om_file import GEAR_INPUT, DataType, TensorDesc, data_type_name
from omruntime.om_file.attributes import AttrValue
from omruntime.om_file.model_def import Op, OpTensor
from omruntime.om_file.model_pack import TYPE_NUMBERS, pack_graph, pack_op
from omruntime.om_file.simulated import SimulatedWeight

_BRANCH = "_ascend_mbatch_batch_"
_DIMS_GEARS = 3
_CASE = "ascend_mbatch_shape_case"


@dataclass(frozen=True, slots=True)
class GraphSource:
    """What the operators are made of.

    Attributes:
        inputs: With the gear input, in their order.
        outputs: As MODEL_INOUT_INFO has them.
    """

    graph: GraphProto
    table: OperatorTable
    inputs: Sequence[TensorDesc]
    outputs: Sequence[TensorDesc]
    weights: Sequence[SimulatedWeight]


def pack_graphs(source: GraphSource, request: ShapeRequest) -> list[bytes]:
    """The main graph, then a branch for each gear."""
    data = [_data_op(desc, index, request) for index, desc in enumerate(source.inputs)]
    constants = list(_constant_ops(source))
    name = source.graph.name or "graph"
    if not request.gears:
        ops = [*data, *constants, *_node_ops(source, ""), _net_output(source, _producers(source))]
        return [pack_graph(name, map(pack_op, ops))]
    branches = [f"{name}{_BRANCH}{number}" for number in range(len(request.gears))]
    case = pack_op(_case_op(source, request), branches)
    outputs = {t.name: f"{_CASE}:{i}" for i, t in enumerate(source.graph.output)}
    main = [*map(pack_op, [*data, *constants, _index_op()]), case]
    main.append(pack_op(_net_output(source, outputs)))
    return [
        pack_graph(name, main),
        *(
            pack_graph(branch, map(pack_op, _branch_ops(source, f"{_BRANCH}{number}")))
            for number, branch in enumerate(branches)
        ),
    ]


def output_names(graph: GraphProto) -> list[str]:
    """`node:index:tensor` of each output, as atc names them."""
    places = {t: f"{node.name}:{i}" for node in graph.node for i, t in enumerate(node.output)}
    return [f"{places.get(value.name, value.name + ':0')}:{value.name}" for value in graph.output]


def _data_op(desc: TensorDesc, index: int, request: ShapeRequest) -> Op:
    """An input; one that gears change has the shape of the largest."""
    attributes: dict[str, AttrValue] = {"index": index}
    tensor = _tensor(desc)
    if -1 in desc.dims:
        attributes["_mbatch_origin_input_dims"] = desc.dims
        largest = max((shapes[desc.name] for shapes in request.all_shapes), key=math.prod)
        tensor = replace(tensor, dims=largest)
    return Op(desc.name, "Data", ("",), attributes, (tensor,), (tensor,))


def _tensor(desc: TensorDesc) -> OpTensor:
    number = TYPE_NUMBERS[data_type_name(desc.dtype)]
    return OpTensor(number, desc.dims, "ND", desc.size_bytes)


def _constant_ops(source: GraphSource) -> Iterator[Op]:
    placed = {weight.name: weight for weight in source.weights}
    for tensor in source.graph.initializer:
        weight = placed.get(tensor.name)
        if weight is None:
            yield Op(tensor.name, "Const")
            continue
        number = TYPE_NUMBERS[DataType.of_numpy(weight.dtype).label]
        desc = OpTensor(number, weight.shape, "ND", weight.size_bytes)
        constant = Op(tensor.name, "Const", output_descs=(desc,))
        if weight.file:
            attributes: dict[str, AttrValue] = {
                "location": PurePosixPath(weight.file).name,
                "offset": weight.offset,
                "length": weight.size_bytes,
            }
            constant = replace(constant, type="FileConstant", attributes=attributes)
        yield constant


def _producers(source: GraphSource) -> Mapping[str, str]:
    """`node:index` for every value."""
    places = {desc.name: f"{desc.name}:0" for desc in source.inputs}
    places |= {tensor.name: f"{tensor.name}:0" for tensor in source.graph.initializer}
    for node in source.graph.node:
        places |= {name: f"{node.name}:{i}" for i, name in enumerate(node.output)}
    return places


def _node_ops(source: GraphSource, suffix: str) -> Iterator[Op]:
    places = _producers(source)
    for node in source.graph.node:
        inputs = tuple(_with_suffix(places.get(name, ""), suffix) for name in node.input)
        yield Op(node.name + suffix, _ascend_type(node, source.table), inputs)


def _with_suffix(place: str, suffix: str) -> str:
    node, colon, index = place.rpartition(":")
    return f"{node}{suffix}{colon}{index}" if place else ""


def _ascend_type(node: NodeProto, table: OperatorTable) -> str:
    operator = table.find(node.domain, node.op_type)
    return operator.ascend_ops[0] if operator and operator.ascend_ops else node.op_type


def _net_output(source: GraphSource, places: Mapping[str, str]) -> Op:
    inputs = [places.get(value.name, f"{value.name}:0") for value in source.graph.output]
    pairs = [place.rpartition(":") for place in inputs]
    return Op(
        "Node_Output",
        "NetOutput",
        tuple(inputs),
        input_descs=tuple(map(_tensor, source.outputs)),
        src_names=tuple(node for node, _, _ in pairs),
        src_indexes=tuple(int(index) for _, _, index in pairs),
    )


def _index_op() -> Op:
    return Op("ascend_mbatch_shape_mapindex", "MapIndex", (f"{GEAR_INPUT}:0",))


def _case_op(source: GraphSource, request: ShapeRequest) -> Op:
    attributes: dict[str, AttrValue] = {
        "batch_num": len(request.gears),
        "mbatch_dynamic_type": _DIMS_GEARS,
        "user_designate_shape_order": tuple(request.input_shapes),
    }
    attributes |= {f"_pred_value_{i}": gear for i, gear in enumerate(request.gears)}
    data = [desc.name for desc in source.inputs if desc.name != GEAR_INPUT]
    constants = [tensor.name for tensor in source.graph.initializer]
    inputs = ["ascend_mbatch_shape_mapindex:0", *(f"{name}:0" for name in data + constants)]
    return Op(_CASE, "Case", tuple(inputs), attributes)


def _branch_ops(source: GraphSource, suffix: str) -> Iterator[Op]:
    """Data for what the Case hands in, the nodes, and the outputs."""
    names = [desc.name for desc in source.inputs if desc.name != GEAR_INPUT]
    names += [tensor.name for tensor in source.graph.initializer]
    for index, name in enumerate(names):
        attributes: dict[str, AttrValue] = {"index": index, "_parent_node_index": index + 1}
        yield Op(name + suffix, "Data", ("",), attributes)
    yield from _node_ops(source, suffix)
    places = {name: _with_suffix(place, suffix) for name, place in _producers(source).items()}
    yield replace(_net_output(source, places), name=f"Node_Output{suffix}", input_descs=())
