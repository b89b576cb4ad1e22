"""Write an OM file part by part, so that weights never lie in memory as a whole.

The inverse of `container.py`.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from omruntime.errors import BundleError
from omruntime.om_file.header import OmHeader, pack_header
from omruntime.om_file.partitions import PartitionType, pack_table


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition to write.

    Attributes:
        chunks: Its bytes in order; views of mapped files are fine.
    """

    type: PartitionType
    chunks: tuple[bytes | memoryview, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all chunks."""
        return sum(memoryview(chunk).nbytes for chunk in self.chunks)


def write_om(
    stream: BinaryIO,
    header: OmHeader,
    blocks: Sequence[Iterable[Partition]],
    has_wide_table: bool = True,
) -> None:
    """Write a whole file.

    Args:
        header: Its lengths and `model_num` are filled in here.
        blocks: One for each model. Empty partitions are left out, as GE's writer does.
        has_wide_table: False writes the narrow table of older files.

    Raises:
        BundleError: The parts do not fit into the narrow table or an old header.
    """
    kept = [[part for part in block if part.size_bytes] for block in blocks]
    try:
        tables = [pack_table([(p.type, p.size_bytes) for p in b], has_wide_table) for b in kept]
        payload = sum(map(len, tables)) + sum(p.size_bytes for block in kept for p in block)
        lengths = (0, payload) if has_wide_table else (payload, 0)
        length, model_length = lengths
        packed = pack_header(
            replace(header, length=length, model_length=model_length, model_num=len(blocks))
        )
    except struct.error as error:
        raise BundleError(f"the model does not fit into this form of OM file: {error}") from error
    stream.write(packed)
    for table, block in zip(tables, kept, strict=True):
        stream.write(table)
        for part in block:
            for chunk in part.chunks:
                stream.write(chunk)


def om_bytes(
    header: OmHeader, blocks: Sequence[Iterable[Partition]], has_wide_table: bool = True
) -> bytes:
    """The same in memory, for small files."""
    stream = io.BytesIO()
    write_om(stream, header, blocks, has_wide_table)
    return stream.getvalue()
