"""The 256 bytes at the front of an OM file, of both ages.

Owns the fields and their places. How many bytes follow, and what they are, is `container.py`.

Source: hicann/ge inc/framework/common/framework_types_internal.h, struct ModelFileHeader.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from omruntime.errors import BundleError
from omruntime.om_file.byte_cursor import decode_padded_text

HEADER_BYTES = 256
# The bytes with which every OM begins, and the same as a number.
OM_START = b"IMOD"
MAGIC = int.from_bytes(OM_START, "little")
OLD_VERSION = 0x10000000
NEW_VERSION = 0x20000000
_MAX_NAME_BYTES = 31

_FRONT = struct.Struct("<III64sIBBBB32sI32sI")
# The old header has no model_num in front of the platform.
_OLD_BACK = struct.Struct("<20sB7sQBB62s")
_NEW_BACK = struct.Struct("<I20sB3sQBB62s")


class ModelType(IntEnum):
    """What kind of model the file holds; atc writes IR_MODEL."""

    IR_MODEL = 0
    STANDARD = 1
    TINY = 2
    FLOW = 3
    LITE = 4
    BUNDLE = 5


@dataclass(frozen=True, slots=True)
class OmHeader:
    """All fields but the constant ones (magic, header size).

    Attributes:
        name: At most 31 bytes of UTF-8.
        length: Payload bytes in older files; 0 where `model_length` is used.
        model_length: Payload bytes (of a bundle: of the whole file); 0 in older files.
        model_type: A `ModelType`, or a number that this omserve does not know.
        model_num: Blocks of partitions; 1 in old headers, which lack the field.
        has_unknown_shape: Whether shapes stay open until run time.
        needs_os_cpu_check: Whether libraries of one host system are inside.
        checksum, user_define_info, reserved: As found; zero in every file seen.
    """

    name: str
    version: int = NEW_VERSION
    model_type: int = ModelType.IR_MODEL
    length: int = 0
    model_length: int = 0
    is_encrypted: bool = False
    is_checksum: int = 0
    generation_mode: int = 0
    num_ops: int = 0
    om_ir_version: int = 0
    model_num: int = 1
    platform_version: str = ""
    platform_type: int = 0
    needs_os_cpu_check: bool = False
    has_unknown_shape: bool = False
    checksum: bytes = bytes(64)
    user_define_info: bytes = bytes(32)
    reserved: bytes = bytes(62)

    @property
    def is_old(self) -> bool:
        """Whether the header is of the age before `model_num`."""
        return self.version < NEW_VERSION

    @property
    def has_wide_table(self) -> bool:
        """Whether partition tables hold 64-bit sizes."""
        return self.model_length != 0 or self.model_type == ModelType.FLOW


def parse_header(data: memoryview) -> OmHeader:
    """The header at the front of a file.

    Raises:
        BundleError: Too short, another magic number or another header size.
    """
    if len(data) < HEADER_BYTES:
        raise BundleError(f"header, offset 0: got {len(data)} bytes, wanted {HEADER_BYTES}")
    (magic, size, version, checksum, length, is_encrypted, is_checksum, model_type, mode, name,
     num_ops, user_define_info, om_ir_version) = _FRONT.unpack_from(data)  # fmt: skip
    if magic != MAGIC:
        raise BundleError(
            f"header, offset 0: got the magic number {magic:#010x}, wanted {MAGIC:#010x} "
            f"(the bytes IMOD); this is no OM file"
        )
    if size != HEADER_BYTES:
        raise BundleError(f"header, offset 4: got a header of {size} bytes, wanted {HEADER_BYTES}")
    model_num, back = _parse_back(data, version)
    return OmHeader(
        name=decode_padded_text(name),
        version=version,
        model_type=model_type,
        length=length,
        model_length=back[2],
        is_encrypted=is_encrypted != 0,
        is_checksum=is_checksum,
        generation_mode=mode,
        num_ops=num_ops,
        om_ir_version=om_ir_version,
        model_num=model_num,
        platform_version=decode_padded_text(back[0]),
        platform_type=back[1],
        needs_os_cpu_check=back[3] != 0,
        has_unknown_shape=version >= NEW_VERSION and back[4] != 0,
        checksum=checksum,
        user_define_info=user_define_info,
        reserved=back[5],
    )


_Back: TypeAlias = tuple[bytes, int, int, int, int, bytes]


def _parse_back(data: memoryview, version: int) -> tuple[int, _Back]:
    """`model_num`, then what lies behind it in both ages."""
    if version < NEW_VERSION:
        platform, kind, _, length, check, unknown, rest = _OLD_BACK.unpack_from(data, _FRONT.size)
        return 1, (platform, kind, length, check, unknown, rest)
    num, platform, kind, _, length, check, unknown, rest = _NEW_BACK.unpack_from(data, _FRONT.size)
    return num, (platform, kind, length, check, unknown, rest)


def pack_header(header: OmHeader) -> bytes:
    """The 256 bytes; the inverse of `parse_header`.

    Raises:
        BundleError: The name is too long, or an old header is to hold several models.
    """
    name = header.name.encode()
    if len(name) > _MAX_NAME_BYTES:
        raise BundleError(
            f"the model name {header.name!r} has {len(name)} bytes, wanted at most "
            f"{_MAX_NAME_BYTES}"
        )
    front = _FRONT.pack(
        MAGIC, HEADER_BYTES, header.version, header.checksum, header.length, header.is_encrypted,
        header.is_checksum, header.model_type, header.generation_mode, name, header.num_ops,
        header.user_define_info, header.om_ir_version,
    )  # fmt: skip
    platform = header.platform_version.encode(), header.platform_type
    back = (
        header.model_length,
        header.needs_os_cpu_check,
        header.has_unknown_shape,
        header.reserved,
    )
    if not header.is_old:
        return front + _NEW_BACK.pack(header.model_num, *platform, b"", *back)
    if header.model_num != 1:
        raise BundleError(f"an old header holds 1 model, got {header.model_num}")
    return front + _OLD_BACK.pack(*platform, b"", *back)
