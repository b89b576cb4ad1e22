"""OM files: the container that ATC writes and Ascend devices load, read and written.

Owns the format alone, with the standard library and NumPy: header (`header.py`), partition tables
(`partitions.py`), the whole file (`container.py`, `writer.py`), inputs, outputs and gears
(`inout_info.py`, `gears.py`). Who shows, makes or runs OM files stands above.
"""

from omruntime.om_file.container import Block, OmFile, read_om
from omruntime.om_file.data_types import DataType, Format, data_type_name, format_name
from omruntime.om_file.gears import GEAR_INPUT, gear_input_shapes, gear_output_shapes
from omruntime.om_file.header import ModelType, OmHeader
from omruntime.om_file.inout_info import InoutInfo, TensorDesc, pack_inout_info, parse_inout_info
from omruntime.om_file.partitions import PartitionType, TableEntry
from omruntime.om_file.writer import Partition, om_bytes, write_om

__all__ = [
    "GEAR_INPUT",
    "Block",
    "DataType",
    "Format",
    "InoutInfo",
    "ModelType",
    "OmFile",
    "OmHeader",
    "Partition",
    "PartitionType",
    "TableEntry",
    "TensorDesc",
    "data_type_name",
    "format_name",
    "gear_input_shapes",
    "gear_output_shapes",
    "om_bytes",
    "pack_inout_info",
    "parse_inout_info",
    "read_om",
    "write_om",
]
