"""ReflectionPool: our own messages and those of the dialects, as one pool for reflection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

T = TypeVar("T")


class ReflectionPool:
    """What the reflection servicer asks of a pool, of the private ones first."""

    def __init__(self, private: Sequence[DescriptorPool]) -> None:
        self._pools = (*private, descriptor_pool.Default())

    def FindFileByName(self, file_name: str) -> FileDescriptor:  # noqa: N802
        """Raises KeyError when no pool has it, as all below."""
        return self._first(lambda pool: pool.FindFileByName(file_name))

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:  # noqa: N802
        """The file that defines a name."""
        return self._first(lambda pool: pool.FindFileContainingSymbol(symbol))

    def FindMessageTypeByName(self, full_name: str) -> Descriptor:  # noqa: N802
        """The message of that name."""
        return self._first(lambda pool: pool.FindMessageTypeByName(full_name))

    def FindExtensionByNumber(  # noqa: N802
        self, message: Descriptor, number: int
    ) -> FieldDescriptor:
        """Extensions are for proto2, which none of our files is written in."""
        raise KeyError(f"{message.full_name} has no extension {number}")

    def FindAllExtensions(self, message: Descriptor) -> list[FieldDescriptor]:  # noqa: N802
        """None, for the same reason."""
        return []

    def _first(self, find: Callable[[DescriptorPool], T]) -> T:
        for pool in self._pools[:-1]:
            try:
                return find(pool)
            except KeyError:
                continue
        return find(self._pools[-1])
