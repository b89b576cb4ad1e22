"""An OM file as a header and blocks of partitions, read without copying.

Owns which bytes belong to which partition. What a partition says is read by `inout_info.py` and
`model_def.py`; people read it through `export-om inspect`.

Files are mapped, so that memory does not grow with them: an OM of 10 GB can be inspected without
reading its weights. A mapped file must not be cut while it is read.

Source: hicann/ge base/common/helper/om_file_helper.cc (OmFileLoadHelper),
base/common/helper/model_parser_base.cc.
"""

from __future__ import annotations

import mmap
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omruntime.errors import BundleError
from omruntime.om_file.byte_cursor import ByteCursor
from omruntime.om_file.header import HEADER_BYTES, ModelType, OmHeader, parse_header
from omruntime.om_file.partitions import PartitionType, TableEntry, parse_table

# Sub-models of a dynamic model or of a bundle; real files hold a few hundred at most.
MAX_MODELS = 4096
_ZIP_MAGIC = b"PK\x03\x04"


@dataclass(frozen=True, slots=True)
class Block:
    """One table and its partitions.

    Attributes:
        offset: Of the table, from the start of the file.
        table_bytes: Length of the table; the partitions follow it without gaps.
        views: The partitions' bytes, one for each entry.
    """

    offset: int
    table_bytes: int
    entries: tuple[TableEntry, ...]
    views: tuple[memoryview, ...]

    @property
    def partitions(self) -> Mapping[int, memoryview]:
        """The bytes by `PartitionType`; of several alike (flow models) the first."""
        by_type: dict[int, memoryview] = {}
        for entry, view in zip(self.entries, self.views, strict=True):
            by_type.setdefault(entry.type, view)
        return by_type

    def partition_offset(self, partition: PartitionType) -> int:
        """Where a partition that is there begins in the file."""
        at = self.offset + self.table_bytes
        for entry, view in zip(self.entries, self.views, strict=True):
            if entry.type == partition:
                return at
            at += len(view)
        raise KeyError(partition)

    @property
    def has_running_offsets(self) -> bool:
        """Whether the table's offsets agree with the sizes; the loader only reads the sizes."""
        at = 0
        for entry in self.entries:
            if entry.offset != at:
                return False
            at += entry.size_bytes
        return True


@dataclass(frozen=True, slots=True)
class OmFile:
    """A parsed file; its views stay valid as long as any of them is held.

    Attributes:
        blocks: Empty where the payload is encrypted, and in bundles.
        sub_models: The complete OM files inside of a bundle.
        num_extra_bytes: Behind the last block; the loader does not mind them in a static model.
    """

    header: OmHeader
    size_bytes: int
    blocks: tuple[Block, ...]
    sub_models: tuple[OmFile, ...] = ()
    num_extra_bytes: int = 0


def read_om(source: Path | bytes | memoryview) -> OmFile:
    """Parse the file at a path, or bytes that hold one.

    Raises:
        BundleError: Not a readable OM file; the message says the offset, what was got and what
            was wanted. OM2 files (zip archives) are refused by name.
    """
    if not isinstance(source, Path):
        return _parse(memoryview(source).cast("B"), 0)
    try:
        return _parse(_map(source), 0)
    except BundleError as error:
        raise BundleError(f"{source}: {error}") from error


def _map(path: Path) -> memoryview:
    try:
        # A pipe would wait for a writer, and a device has no end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise BundleError("got something other than a regular file, wanted an OM file")
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise BundleError(f"cannot read it: {error}") from error


def _parse(data: memoryview, origin: int) -> OmFile:
    if data[:4] == _ZIP_MAGIC:
        raise BundleError(
            "this is an OM2 package (a zip archive, made by atc --mode=7), which omserve does not "
            "read; wanted an OM file (atc --mode=0)"
        )
    header = parse_header(data)
    if header.model_type == ModelType.BUNDLE:
        return _parse_bundle(data, header, origin)
    _require_length(data, header)
    if header.is_encrypted:
        return OmFile(header, len(data), ())
    cursor = ByteCursor(data[HEADER_BYTES:], origin + HEADER_BYTES, "partition table")
    if not (header.model_num > 1 or header.has_unknown_shape):
        block = _parse_block(cursor, header)
        return OmFile(header, len(data), (block,), num_extra_bytes=cursor.num_left)
    _require_model_num(header, least=1)
    blocks = tuple(_parse_block(cursor, header) for _ in range(header.model_num))
    cursor.require_end()
    return OmFile(header, len(data), blocks)


def _require_length(data: memoryview, header: OmHeader) -> None:
    length, at = (header.model_length, 184) if header.model_length else (header.length, 76)
    got = len(data) - HEADER_BYTES
    if length != got:
        raise BundleError(
            f"header, offset {at}: got a payload length of {length}, but {got} bytes follow the "
            f"header; the file is cut short or damaged"
        )


def _require_model_num(header: OmHeader, least: int) -> None:
    if not least <= header.model_num <= MAX_MODELS:
        raise BundleError(
            f"header, offset 156: got {header.model_num} models, wanted {least} to {MAX_MODELS}"
        )


def _parse_block(cursor: ByteCursor, header: OmHeader) -> Block:
    offset = cursor.offset
    is_flow = header.model_type == ModelType.FLOW
    entries = parse_table(cursor, header.has_wide_table, is_flow)
    types = [entry.type for entry in entries]
    if not is_flow and len(set(types)) < len(types):
        raise BundleError(
            f"partition table, offset {offset}: got the types {types}, wanted each at most once"
        )
    table_bytes = cursor.offset - offset
    views = tuple(cursor.take(e.size_bytes, f"the partition {e.type_name}") for e in entries)
    return Block(offset, table_bytes, entries, views)


def _parse_bundle(data: memoryview, header: OmHeader, origin: int) -> OmFile:
    """A bundle of aclgrphBundleSaveModel: one table, then complete OM files.

    Source: hicann/ge base/common/helper/model_helper.cc, bundle models.
    """
    if header.model_length != len(data):
        raise BundleError(
            f"header, offset 184: got a bundle length of {header.model_length}, but the file has "
            f"{len(data)} bytes"
        )
    if origin:
        raise BundleError(f"bundle, offset {origin}: got a bundle inside of a bundle")
    _require_model_num(header, least=1)
    cursor = ByteCursor(data[HEADER_BYTES:], HEADER_BYTES, "bundle table")
    entries = parse_table(cursor, is_wide=True, is_flow=True)
    wanted = [PartitionType.BUNDLE_MODEL_VAR_INFO]
    wanted += [PartitionType.BUNDLE_MODEL_INFO] * header.model_num
    if [entry.type for entry in entries] != wanted:
        raise BundleError(
            f"bundle table, offset {HEADER_BYTES}: got {len(entries)} entries, wanted type 25 and "
            f"then {header.model_num} of type 24"
        )
    _require_apart(entries[1:])
    return OmFile(header, len(data), (), tuple(_sub_model(data, entry) for entry in entries[1:]))


def _require_apart(entries: tuple[TableEntry, ...]) -> None:
    """Refuse models that share bytes: a small file would stand for thousands of large ones."""
    end = 0
    for entry in entries:
        if entry.offset < end:
            raise BundleError(
                f"bundle table: got a model at offset {HEADER_BYTES + entry.offset}, wanted it "
                f"behind the one before it, which ends at {HEADER_BYTES + end}"
            )
        end = entry.offset + entry.size_bytes


def _sub_model(data: memoryview, entry: TableEntry) -> OmFile:
    start = HEADER_BYTES + entry.offset
    end = start + entry.size_bytes
    if end > len(data):
        raise BundleError(
            f"bundle table: got a model at offset {start} to {end}, but the file has "
            f"{len(data)} bytes"
        )
    return _parse(data[start:end], start)
