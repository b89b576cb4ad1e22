"""Bounded reads of little-endian fields from bytes that nobody vouches for.

Owns the error text of every short read: where, what was left, what was wanted. What the fields
mean is the business of the modules that read them.
"""

from __future__ import annotations

import struct

from omruntime.errors import BundleError


class ByteCursor:
    """A position in a run of bytes that only moves forward.

    Args:
        data: The bytes; slices that `take` returns are views, never copies.
        origin: Where `data` begins in the file, so that errors name the file's offsets.
        what: Names the part in errors, such as `partition table`.
    """

    def __init__(self, data: memoryview, origin: int, what: str) -> None:
        self._data = data
        self._origin = origin
        self._what = what
        self._at = 0

    @property
    def offset(self) -> int:
        """The next byte's offset in the file."""
        return self._origin + self._at

    @property
    def num_left(self) -> int:
        """Bytes that were not taken yet."""
        return len(self._data) - self._at

    def take(self, size_bytes: int, field: str) -> memoryview:
        """The next bytes as a view.

        Raises:
            BundleError: Fewer are left.
        """
        if size_bytes > self.num_left:
            raise self.error(f"got {self.num_left} bytes, wanted {size_bytes} for {field}")
        start = self._at
        self._at += size_bytes
        return self._data[start : self._at]

    def unpack(self, layout: str, field: str) -> tuple[int, ...]:
        """The next integers, by a `struct` layout without its byte order."""
        packer = struct.Struct("<" + layout)
        return packer.unpack(self.take(packer.size, field))

    def integer(self, layout: str, field: str) -> int:
        """The next integer, by its `struct` letter."""
        return self.unpack(layout, field)[0]

    def integers(self, layout: str, size_bytes: int, field: str) -> tuple[int, ...]:
        """All integers in the next `size_bytes`, which must hold a whole number of them."""
        width = struct.calcsize("<" + layout)
        if size_bytes % width:
            raise self.error(f"got {size_bytes} bytes, wanted a multiple of {width} for {field}")
        return struct.unpack(f"<{size_bytes // width}{layout}", self.take(size_bytes, field))

    def text(self, size_bytes: int, field: str) -> str:
        """The next bytes as text; what is not UTF-8 shows as escapes."""
        return decode_text(self.take(size_bytes, field))

    def require_end(self) -> None:
        """Refuse bytes that are left over.

        Raises:
            BundleError: There are some.
        """
        if self.num_left:
            raise self.error(f"got {self.num_left} more bytes, wanted the end")

    def error(self, text: str) -> BundleError:
        """An error at the current offset."""
        return BundleError(f"{self._what}, offset {self.offset}: {text}")


def decode_text(data: memoryview | bytes) -> str:
    """Text of a file; bytes that are not UTF-8 show as escapes."""
    return bytes(data).decode("utf-8", errors="backslashreplace")


def decode_padded_text(data: bytes) -> str:
    """Text up to the first zero byte."""
    return decode_text(data.partition(b"\0")[0])
