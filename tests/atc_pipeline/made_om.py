"""OM files of all forms, made by the project's own writer after the format's description."""

from __future__ import annotations

import struct

from omruntime.om_file import (
    GEAR_INPUT,
    DataType,
    InoutInfo,
    ModelType,
    OmHeader,
    Partition,
    PartitionType,
    TensorDesc,
    om_bytes,
    pack_inout_info,
)
from omruntime.om_file.attributes import Attributes
from omruntime.om_file.header import OLD_VERSION
from omruntime.om_file.model_def import Op, OpTensor
from omruntime.om_file.model_pack import TYPE_NUMBERS, pack_graph, pack_model, pack_op

ATTRIBUTES: Attributes = {
    "memory_size": 4096,
    "weight_size": 640,
    "stream_num": 1,
    "soc_version": "Ascend310P3",
    "atc_version": "7.0.0",
    "atc_cmdline": "atc.bin --model=a.onnx",
    "om_info_list": (640, 0, 0, 16, 0),
    "attr_model_out_nodes_name": ("head:0:logits",),
}
INFO = InoutInfo(
    inputs=(
        TensorDesc("ids", DataType.INT32, (-1, -1), 64),
        TensorDesc(GEAR_INPUT, DataType.INT32, (2,), 8),
    ),
    outputs=(TensorDesc("head:0:logits", DataType.FLOAT32, (-1, 9), 72),),
    dim_gears=((1, 4), (2, 8)),
    output_shapes=("0,0,1,9", "1,0,2,9"),
    input_order=("ids",),
)
INT32, FLOAT32 = TYPE_NUMBERS["int32"], TYPE_NUMBERS["float32"]


def data_op(name: str, index: int, dims: tuple[int, ...]) -> Op:
    desc = OpTensor(INT32, dims, "ND", 32)
    return Op(name, "Data", ("",), {"index": index}, (desc,), (desc,))


GEAR_OPS = (
    data_op("ids", 0, (2, 8)),
    data_op(GEAR_INPUT, 1, (2,)),
    Op("shape_mapindex", "MapIndex"),
    Op(
        "shape_case",
        "Case",
        ("shape_mapindex:0", "ids:0"),
        {
            "batch_num": 2,
            "_pred_value_0": (1, 4),
            "_pred_value_1": (2, 8),
            "mbatch_dynamic_type": 3,
            "user_designate_shape_order": ("ids",),
        },
    ),
    Op(
        "Node_Output",
        "NetOutput",
        input_descs=(OpTensor(FLOAT32, (2, 9), "ND", 72),),
        src_names=("shape_case",),
        src_indexes=(0,),
    ),
)
OUTSIDE = tuple(
    Op(f"w{i}", "FileConstant", (), {"location": "weight_ab", "offset": 64 * i, "length": 64})
    for i in range(2)
)


def model_part(
    ops: tuple[Op, ...], attributes: Attributes = ATTRIBUTES, name: str = "step"
) -> Partition:
    branch = pack_graph("branch", [pack_op(Op("mm", "BatchMatMulV2"))])
    graphs = [pack_graph("main", map(pack_op, ops)), branch]
    return Partition(PartitionType.MODEL_DEF, pack_model(name, 2, graphs, attributes))


def info_part(info: InoutInfo = INFO) -> Partition:
    return Partition(PartitionType.MODEL_INOUT_INFO, (pack_inout_info(info),))


WEIGHTS = Partition(PartitionType.WEIGHTS_DATA, (bytes(640),))
TASKS = Partition(PartitionType.TASK_INFO, (bytes(16),))


def gear_om() -> bytes:
    return om_bytes(OmHeader("step"), [[info_part(), model_part(GEAR_OPS), WEIGHTS, TASKS]])


def old_om() -> bytes:
    """Header and table of older files, without the flat description; the operators tell."""
    header = OmHeader("step", version=OLD_VERSION, platform_version="1.11.z.0", platform_type=1)
    return om_bytes(header, [[model_part(GEAR_OPS), WEIGHTS, TASKS]], has_wide_table=False)


def dynamic_om() -> bytes:
    """Three models; the first has the dictionary."""
    coded: Attributes = {
        "om_compress_version": 1,
        "attr_name_enum": ("location", "offset"),
        "attr_value_enum": ("weight_cd",),
        "attrs_use_string_value": (True, False),
    }
    outside = Op("w", "FileConstant", (), {"\0\1": 0, "\0\2": 8, "length": 4})
    blocks = [
        [model_part((data_op("ids", 0, (-1,)),), ATTRIBUTES | coded, "root"), TASKS],
        [model_part((outside,), {"memory_size": 1}, "sub_1")],
        [model_part((), {"memory_size": 2}, "sub_2"), WEIGHTS],
    ]
    return om_bytes(OmHeader("root", has_unknown_shape=True), blocks)


def bundle_om() -> bytes:
    models = [gear_om(), old_om()]
    sizes = [8, *map(len, models)]
    table, at = struct.pack("<II", len(sizes), 0), 8 + 24 * len(sizes)
    for number, size in enumerate(sizes):
        table += struct.pack("<IIQQ", 24 if number else 25, 0, at, size)
        at += size
    header = om_bytes(OmHeader("", model_type=ModelType.BUNDLE), [[TASKS]] * len(models))[:256]
    data = bytearray(header + table + bytes(8) + b"".join(models))
    struct.pack_into("<Q", data, 184, len(data))
    return bytes(data)


ALL_FORMS = {"gear": gear_om, "old": old_om, "dynamic": dynamic_om, "bundle": bundle_om}
