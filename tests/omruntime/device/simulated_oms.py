"""Small simulated OMs, written part by part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from omruntime.manifest import TensorSpec
from omruntime.om_file import (
    GEAR_INPUT,
    DataType,
    InoutInfo,
    OmHeader,
    Partition,
    PartitionType,
    TensorDesc,
    pack_inout_info,
    write_om,
)
from omruntime.om_file.model_pack import pack_graph, pack_model
from omruntime.om_file.simulated import SimulatedWeight, pack_simulated_program

SOC = "Ascend310P3"
WORK_BYTES, WEIGHT_BYTES = 4096, 1024
Gear = Mapping[str, int]


def write_simulated_om(
    path: Path,
    model: onnx.ModelProto,
    tensors: tuple[Sequence[TensorSpec], Sequence[TensorSpec]],
    gears: Sequence[Gear],
    weights: Sequence[SimulatedWeight] = (),
    **attributes: str | int,
) -> Path:
    """Write an OM: with gears when there are several, else static in the one shape.

    Args:
        tensors: The program's inputs and outputs.
        gears: What the symbolic dimensions stand for.
    """
    given: dict[str, str | int] = {
        "soc_version": SOC,
        "memory_size": WORK_BYTES,
        "weight_size": WEIGHT_BYTES,
        **attributes,
    }
    partitions = (
        Partition(PartitionType.MODEL_INOUT_INFO, (pack_inout_info(_info(tensors, gears)),)),
        Partition(PartitionType.MODEL_DEF, pack_model("m", 1, (pack_graph("g", ()),), given)),
        Partition(
            PartitionType.WEIGHTS_DATA,
            pack_simulated_program(model.SerializeToString(), weights, ()),
        ),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        write_om(stream, OmHeader(f"simatc_{path.stem}"[:31]), [partitions])
    return path


def _info(
    tensors: tuple[Sequence[TensorSpec], Sequence[TensorSpec]], gears: Sequence[Gear]
) -> InoutInfo:
    inputs, outputs = tensors
    if len(gears) == 1:
        return InoutInfo(
            tuple(_desc(t, t.name, gears[0], gears) for t in inputs),
            tuple(_desc(t, _output_name(t), gears[0], gears) for t in outputs),
        )
    open_dims = [dim for t in inputs for dim in t.shape if isinstance(dim, str)]
    gear_desc = TensorDesc(GEAR_INPUT, DataType.INT64, (len(open_dims),), 8 * len(open_dims))
    return InoutInfo(
        (*(_desc(t, t.name, {}, gears) for t in inputs), gear_desc),
        tuple(_desc(t, _output_name(t), {}, gears) for t in outputs),
        dim_gears=tuple(tuple(gear[dim] for dim in open_dims) for gear in gears),
        output_shapes=tuple(
            ",".join(map(str, (g, o, *shape_of(t, gear))))
            for g, gear in enumerate(gears)
            for o, t in enumerate(outputs)
        ),
        input_order=tuple(t.name for t in inputs),
    )


def _output_name(spec: TensorSpec) -> str:
    """As ATC calls it; a name with a colon stands as it is."""
    return spec.name if ":" in spec.name else f"node_{spec.name}:0:{spec.name}"


def _desc(spec: TensorSpec, name: str, fixed: Gear, gears: Sequence[Gear]) -> TensorDesc:
    dims = tuple(fixed.get(d, -1) if isinstance(d, str) else d for d in spec.shape)
    item_bytes = np.dtype(spec.dtype).itemsize
    nbytes = max(math.prod(shape_of(spec, gear)) for gear in gears) * item_bytes
    return TensorDesc(name, DataType.of_numpy(spec.dtype), dims, nbytes)


def shape_of(spec: TensorSpec, gear: Gear) -> tuple[int, ...]:
    """A tensor's shape in one gear."""
    return tuple(gear[dim] if isinstance(dim, str) else dim for dim in spec.shape)


def float_model(
    inputs: Mapping[str, tuple[int | str, ...]],
    outputs: Mapping[str, tuple[int | str, ...]],
    nodes: Sequence[onnx.NodeProto],
    initializers: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """A float32 model from its nodes."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        list(initializers),
    )
    opset = helper.make_opsetid("", 18)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9)


SHAPE = ("batch", "tokens")
TWICE_TENSORS = ((TensorSpec("x", "float32", SHAPE),), (TensorSpec("y", "float32", SHAPE),))
SMALL_GEAR, LARGE_GEAR = {"batch": 2, "tokens": 1}, {"batch": 3, "tokens": 4}


def twice_model() -> onnx.ModelProto:
    """y = x + x."""
    return float_model({"x": SHAPE}, {"y": SHAPE}, [helper.make_node("Add", ["x", "x"], ["y"])])


def write_twice(path: Path, gears: Sequence[Gear] = (LARGE_GEAR,), **attributes: str | int) -> Path:
    """The OM of `twice_model`."""
    return write_simulated_om(path, twice_model(), TWICE_TENSORS, gears, **attributes)
