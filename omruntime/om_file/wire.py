"""The protobuf wire format without a schema, bounded for hostile files.

Owns tags, varints and lengths. Nothing descends by itself: a nested message is a view that the
caller reads or skips, so the depth is that of the caller's code, memory stays at views, and a
`FieldBudget` bounds the time. The generated classes of the protobuf library would parse the whole
message at once: gigabytes of objects for a file of a few hundred megabytes.

Source: protobuf.dev, Encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from omruntime.errors import BundleError
from omruntime.om_file.byte_cursor import decode_text

_MAX_VARINT_BYTES = 10
_TEXT_BYTES_PER_FIELD = 16
_UINT64 = (1 << 64) - 1


class WireType(IntEnum):
    """How a field's value is laid out; groups (3, 4) are refused."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


class FieldBudget:
    """How many fields may still be read, over all messages of one file."""

    def __init__(self, max_fields: int) -> None:
        self._max = max_fields
        self._left = max_fields

    def spend(self, what: str, count: int = 1) -> None:
        """Count fields.

        Raises:
            BundleError: All are spent.
        """
        self._left -= count
        if self._left < 0:
            raise BundleError(f"{what}: got more than {self._max} protobuf fields, wanted fewer")


class Field(NamedTuple):
    """One field of a message; a tuple, since millions of them are made.

    Attributes:
        value: Of a varint; 0 otherwise.
        data: The value's bytes; empty for a varint.
        offset: Of the value in the file.
    """

    number: int
    kind: int
    value: int
    data: memoryview
    offset: int

    def require(self, kind: WireType) -> None:
        """Refuse a value of another wire type."""
        if self.kind != kind:
            raise BundleError(
                f"protobuf field {self.number}, offset {self.offset}: got wire type {self.kind}, "
                f"wanted {int(kind)}"
            )

    @property
    def unsigned(self) -> int:
        """A varint as it is."""
        self.require(WireType.VARINT)
        return self.value

    @property
    def integer(self) -> int:
        """A varint as int64."""
        return _to_signed(self.unsigned)

    @property
    def float32(self) -> float:
        """Four bytes as a float."""
        self.require(WireType.FIXED32)
        return float(struct.unpack("<f", self.data)[0])


class Message:
    """The fields of one message, read as they are asked for.

    Args:
        origin: Where `data` begins in the file, for errors.
        what: Names the message in errors.
    """

    __slots__ = ("_budget", "_data", "_origin", "_what")

    def __init__(self, data: memoryview, origin: int, what: str, budget: FieldBudget) -> None:
        self._data = data
        self._origin = origin
        self._what = what
        self._budget = budget

    def fields(self) -> Iterator[Field]:
        """Every field in its order.

        Raises:
            BundleError: Malformed, cut short, or the budget is spent.
        """
        at, end = 0, len(self._data)
        while at < end:
            self._budget.spend(self._what)
            start = at
            tag, at = self._varint(self._data, at)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                raise self._error(start, "got field number 0, wanted 1 or more")
            if kind == 0:
                value, at = self._varint(self._data, at)
                yield Field(number, kind, value, self._data[:0], self._origin + at)
                continue
            size, at = self._size(kind, at)
            if size > end - at:
                raise self._error(start, f"got {end - at} bytes, wanted {size} for field {number}")
            yield Field(number, kind, 0, self._data[at : at + size], self._origin + at)
            at += size

    def nested(self, field: Field, what: str) -> Message:
        """A field's bytes as a message of its own, on the same budget."""
        field.require(WireType.BYTES)
        return Message(field.data, field.offset, what, self._budget)

    def text(self, field: Field) -> str:
        """Bytes as text; what is not UTF-8 shows as escapes. Long ones count as many fields."""
        field.require(WireType.BYTES)
        self._budget.spend(self._what, len(field.data) // _TEXT_BYTES_PER_FIELD)
        return decode_text(field.data)

    def integers(self, field: Field) -> Iterator[int]:
        """One int64, or all of a packed run."""
        if field.kind == WireType.VARINT:
            yield field.integer
            return
        field.require(WireType.BYTES)
        at = 0
        while at < len(field.data):
            self._budget.spend(self._what)
            value, at = self._varint(field.data, at)
            yield _to_signed(value)

    def floats(self, field: Field) -> Iterator[float]:
        """One float of 32 bits, or all of a packed run."""
        if field.kind == WireType.FIXED32:
            yield field.float32
            return
        field.require(WireType.BYTES)
        if len(field.data) % 4:
            raise BundleError(
                f"{self._what}, offset {field.offset}: got {len(field.data)} bytes of floats, "
                f"wanted a multiple of 4"
            )
        for (value,) in struct.iter_unpack("<f", field.data):
            self._budget.spend(self._what)
            yield value

    def _size(self, kind: int, at: int) -> tuple[int, int]:
        if kind == 2:
            return self._varint(self._data, at)
        if kind == WireType.FIXED64:
            return 8, at
        if kind == WireType.FIXED32:
            return 4, at
        raise self._error(at, f"got wire type {kind}, wanted 0, 1, 2 or 5")

    def _varint(self, data: memoryview, at: int) -> tuple[int, int]:
        if at < len(data) and data[at] < 0x80:
            return data[at], at + 1
        value = 0
        for i, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                return value & _UINT64, at + i + 1
        raise self._error(at, f"got a varint without end, wanted at most {_MAX_VARINT_BYTES} bytes")

    def _error(self, at: int, text: str) -> BundleError:
        return BundleError(f"{self._what}, offset {self._origin + at}: {text}")


def _to_signed(value: int) -> int:
    """Two's complement of 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def varint_field(number: int, value: int) -> bytes:
    """A field with an integer, bool or enum; negative ones take ten bytes."""
    return _varint_bytes(number << 3) + _varint_bytes(value & _UINT64)


def bytes_field(number: int, value: bytes | str) -> bytes:
    """A field with bytes, text or a message."""
    data = value.encode() if isinstance(value, str) else value
    return _varint_bytes(number << 3 | WireType.BYTES) + _varint_bytes(len(data)) + data


def packed_field(number: int, values: Iterable[int]) -> bytes:
    """A field with a run of integers; nothing for an empty run, as proto3 writes it."""
    data = b"".join(_varint_bytes(value & _UINT64) for value in values)
    return bytes_field(number, data) if data else b""


def float_field(number: int, value: float) -> bytes:
    """A field with a float of 32 bits."""
    return _varint_bytes(number << 3 | WireType.FIXED32) + struct.pack("<f", value)


def _varint_bytes(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
