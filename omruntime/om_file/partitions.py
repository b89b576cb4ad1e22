"""The partition table: which parts a model is made of, and how long they are.

Owns the two entry sizes. Which one a file uses says its header.

Source: hicann/ge base/common/helper/om_file_helper.cc; framework_types_internal.h, enum
ModelPartitionType.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from omruntime.om_file.byte_cursor import ByteCursor

_MAX_PARTITIONS = 8
_MAX_FLOW_PARTITIONS = 4096
_WIDE_HEAD = struct.Struct("<II")
_WIDE_ENTRY = struct.Struct("<IIQQ")
_TINY_HEAD = struct.Struct("<I")
_TINY_ENTRY = struct.Struct("<III")


class PartitionType(IntEnum):
    """What a partition holds."""

    MODEL_DEF = 0
    WEIGHTS_DATA = 1
    TASK_INFO = 2
    TBE_KERNELS = 3
    CUST_AICPU_KERNELS = 4
    SO_BINS = 5
    FLOW_MODEL = 6
    FLOW_SUBMODEL = 7
    MODEL_INOUT_INFO = 8
    STATIC_TASK_DESC = 9
    DYNAMIC_TASK_DESC = 10
    TASK_PARAM = 11
    TILING_DATA = 12
    PRE_MODEL_DESC = 20
    PRE_MODEL_SQE = 21
    PRE_KERNEL_ARGS = 22
    PRE_MODEL_DESC_EXTEND = 23
    BUNDLE_MODEL_INFO = 24
    BUNDLE_MODEL_VAR_INFO = 25
    CUSTOM_OPS = 26


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One row of the table.

    Attributes:
        type: A `PartitionType`, or a number that this omserve does not know.
        offset: From the end of the table (of a bundle: of the header).
    """

    type: int
    offset: int
    size_bytes: int

    @property
    def type_name(self) -> str:
        """The type in words."""
        known = {int(member): member.name for member in PartitionType}
        return known.get(self.type, f"type {self.type}")


def parse_table(cursor: ByteCursor, is_wide: bool, is_flow: bool) -> tuple[TableEntry, ...]:
    """Take a table off the cursor.

    Raises:
        BundleError: Cut short, or of an impossible number of entries.
    """
    most = _MAX_FLOW_PARTITIONS if is_flow else _MAX_PARTITIONS
    num = cursor.unpack("II" if is_wide else "I", "the partition table's length")[0]
    if not 1 <= num <= most:
        raise cursor.error(f"got {num} partitions, wanted 1 to {most}")
    if is_wide:
        rows = (cursor.unpack("IIQQ", "a partition table entry") for _ in range(num))
        return tuple(TableEntry(kind, offset, size) for kind, _, offset, size in rows)
    rows = (cursor.unpack("III", "a partition table entry") for _ in range(num))
    return tuple(TableEntry(*row) for row in rows)


def pack_table(parts: list[tuple[int, int]], is_wide: bool) -> bytes:
    """The table of (type, size in bytes) in order, with running offsets.

    Raises:
        struct.error: A size does not fit into the narrow table's 32 bits.
    """
    table, offset = (_WIDE_HEAD.pack(len(parts), 0) if is_wide else _TINY_HEAD.pack(len(parts))), 0
    for kind, size in parts:
        row = (kind, 0, offset, size) if is_wide else (kind, offset, size)
        table += (_WIDE_ENTRY if is_wide else _TINY_ENTRY).pack(*row)
        offset += size
    return table
