"""The simulated memory: what the device holds, what the host holds, and which address is where.

Owns contents, bounds and accounting. Device addresses lie outside of the process, so that no
Python code can read them by accident; pinned host memory lies at real addresses. No address of
device memory is given out twice.

Source: CANN pyACL reference, acl.rt.malloc (ceil32 + 32 bytes, 64-byte aligned base, 2 MiB
pages, undefined contents), acl.rt.malloc_host, acl.util.bytes_to_ptr.
"""

from __future__ import annotations

import bisect
import ctypes
import sys
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from omruntime.device.simacl.errors import Code, Refusal, UndefinedBehaviourError
from omruntime.device.simacl.spans import Span

Bytes = NDArray[np.uint8]

HUGE_PAGE_BYTES = 2 << 20
MIB = 1 << 20
ALIGNMENT = 64
# NaN as float16 and as float32, and an index out of any tensor as int32.
_POISON = np.frombuffer(b"\xff\x7f\xff\x7f", np.uint8)
# Beyond every address that a processor maps for a program, so that no array of the host lies in a
# chip's range. (Heap and mappings stand at 0x55... and 0x7f..., which are not high enough.)
_FIRST_DEVICE = 1 << 57
_DEVICE_RANGE = 1 << 44


class Place(Enum):
    """Where an address lies."""

    DEVICE = "device"
    PINNED = "pinned host"
    PAGEABLE = "pageable host"


class MallocPolicy:
    """Page policies of `acl.rt.malloc`; any other number acts as HUGE_FIRST from 2 MiB on."""

    HUGE_FIRST = 0
    HUGE_ONLY = 1
    NORMAL_ONLY = 2
    P2P = 3  # added to the three above


def reserved_bytes(size: int, policy: int, extra: int = 32) -> int:
    """Bytes that an allocation takes away from the device."""
    padded = -(-size // 32) * 32 + extra
    if policy >= 2 * MallocPolicy.P2P:
        is_huge = size >= HUGE_PAGE_BYTES
    else:
        kind = policy % MallocPolicy.P2P
        is_huge = kind == MallocPolicy.HUGE_ONLY or (kind == MallocPolicy.HUGE_FIRST and size > MIB)
    return -(-padded // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES if is_huge else padded


def fill_poison(target: Bytes) -> None:
    """What fresh memory holds."""
    whole = target.size // 4 * 4
    target[:whole].view(np.uint32).fill(_POISON.view(np.uint32)[0])
    target[whole:] = _POISON[: target.size - whole]


@dataclass(slots=True)
class Block:
    """One allocation.

    Attributes:
        content: None for memory that only the loader uses and nobody reads.
        owner: Who must give it back: `user`, or a loaded model.
    """

    address: int
    size: int
    reserved: int
    content: Bytes | None
    owner: str = "user"

    @property
    def span(self) -> Span:
        """Its addresses."""
        return Span.of(self.address, self.size)


class DeviceMemory:
    """The memory of one chip."""

    def __init__(self, device_id: int, total_bytes: int) -> None:
        self.device_id = device_id
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self.blocks: dict[int, Block] = {}
        self._bases: list[int] = []
        self._next = _FIRST_DEVICE + device_id * _DEVICE_RANGE
        self._end = self._next + _DEVICE_RANGE

    def allocate(self, size: int, reserved: int, owner: str = "user", *, keeps: bool = True) -> int:
        """Take memory; its content is poison.

        Raises:
            Refusal: Size 0, or too little is free.
        """
        if size == 0:
            raise Refusal(Code.INVALID_PARAM, "malloc of 0 bytes")
        if reserved > self.total_bytes - self.used_bytes:
            raise Refusal(
                Code.RT_MEMORY_ALLOCATION,
                f"[Driver] device {self.device_id}: {reserved} bytes asked, "
                f"{self.total_bytes - self.used_bytes} of {self.total_bytes} free",
            )
        content = np.empty(size, np.uint8) if keeps else None
        if content is not None:
            fill_poison(content)
        address = self._next
        # A gap behind every block: what runs past its end is nobody's.
        self._next += -(-(size + 4096) // 4096) * 4096
        self.blocks[address] = Block(address, size, reserved, content, owner)
        self._bases.append(address)
        self.used_bytes += reserved
        return address

    def give_back(self, address: int) -> None:
        """Free a block at its base."""
        block = self.blocks.pop(address)
        self._bases.remove(address)
        self.used_bytes -= block.reserved

    def claims(self, address: int) -> bool:
        """Whether an address is, was or may become one of this device."""
        return self._end - _DEVICE_RANGE <= address < self._end

    def find(self, address: int) -> Block | None:
        """The block that an address lies in or shortly behind."""
        at = bisect.bisect_right(self._bases, address) - 1
        return self.blocks[self._bases[at]] if at >= 0 else None


@dataclass(slots=True)
class _Borrowed:
    """A Python object whose memory was handed out as a bare address."""

    owner: object
    content: Bytes

    @property
    def has_moved(self) -> bool:
        """Whether the object's memory is no longer what was handed out."""
        if not isinstance(self.owner, np.ndarray):
            return False
        given = (self.content.ctypes.data, self.content.nbytes)
        return (self.owner.ctypes.data, self.owner.nbytes) != given


@dataclass(slots=True)
class HostMemory:
    """Pinned blocks, and the Python objects that `acl.util` gave addresses of."""

    pinned: dict[int, Block] = field(default_factory=dict)
    _freed: list[Bytes] = field(default_factory=list)
    _borrowed: dict[int, _Borrowed] = field(default_factory=dict)

    def allocate(self, size: int) -> int:
        """Pinned memory at a real address, 64-byte aligned; its content is poison."""
        if size == 0:
            raise Refusal(Code.INVALID_PARAM, "malloc_host of 0 bytes")
        raw = np.empty(size + ALIGNMENT, np.uint8)
        content = raw[-raw.ctypes.data % ALIGNMENT :][:size]
        fill_poison(content)
        address = content.ctypes.data
        self.pinned[address] = Block(address, size, size, content)
        return address

    def give_back(self, address: int) -> None:
        """Free a pinned block; its memory stays mapped, and a late reader finds poison."""
        content = self.pinned.pop(address).content
        assert content is not None
        fill_poison(content)
        self._freed.append(content)

    def borrow(self, owner: object, address: int, nbytes: int) -> None:
        """Note that the address of a Python object's memory was handed out."""
        # Not through the object's buffer, which would count as a reference to it.
        content = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
        self._borrowed[address] = _Borrowed(owner, content)

    def find_pinned(self, address: int) -> Block | None:
        """The pinned block that an address lies in."""
        for block in self.pinned.values():
            if block.address <= address < block.address + block.size:
                return block
        return None

    def find_borrowed(self, address: int) -> Bytes | None:
        """The rest of a Python object's memory from `address` on.

        Raises:
            UndefinedBehaviourError: The object is dead.
        """
        for base, borrowed in self._borrowed.items():
            if base <= address < base + borrowed.content.size:
                # Bytes cannot be referenced weakly; so the object is held and its references
                # are counted: the one here and the argument itself are nobody's.
                if sys.getrefcount(borrowed.owner) <= 2:
                    raise UndefinedBehaviourError(
                        f"the Python object behind host address {address:#x} is gone; keep it "
                        f"alive while acl uses its memory"
                    )
                if borrowed.has_moved:
                    raise UndefinedBehaviourError(
                        f"the array behind host address {address:#x} was resized in place"
                    )
                return borrowed.content[address - base :]
        return None


@dataclass(frozen=True, slots=True)
class Region:
    """A checked run of memory."""

    place: Place
    span: Span
    content: Bytes
    device_id: int | None = None


class AddressSpace:
    """All memory of one process."""

    def __init__(self, devices: list[DeviceMemory]) -> None:
        self.devices = devices
        self.host = HostMemory()

    def device_of(self, address: int) -> DeviceMemory | None:
        """The chip an address belongs to; None for host addresses."""
        return next((d for d in self.devices if d.claims(address)), None)

    def region(self, address: int, nbytes: int, what: str) -> Region:
        """Memory from `address` on.

        Raises:
            UndefinedBehaviourError: Not allocated, freed before, or shorter than `nbytes`.
        """
        device = self.device_of(address)
        if device is not None:
            block = device.find(address)
            if block is None or address >= block.address + block.size:
                raise UndefinedBehaviourError(
                    f"{what}: device address {address:#x} is not allocated (freed before?)"
                )
            return self._part(block, address, nbytes, what, Place.DEVICE, device.device_id)
        pinned = self.host.find_pinned(address)
        if pinned is not None:
            return self._part(pinned, address, nbytes, what, Place.PINNED, None)
        borrowed = self.host.find_borrowed(address)
        if borrowed is None:
            raise UndefinedBehaviourError(
                f"{what}: host address {address:#x} is unknown; wanted one of acl.rt.malloc_host, "
                f"acl.util.bytes_to_ptr or acl.util.numpy_to_ptr"
            )
        if nbytes > borrowed.size:
            raise _past_the_end(what, nbytes, borrowed.size)
        return Region(Place.PAGEABLE, Span.of(address, nbytes), borrowed[:nbytes])

    def _part(
        self, block: Block, address: int, nbytes: int, what: str, place: Place, device: int | None
    ) -> Region:
        start = address - block.address
        if start + nbytes > block.size:
            raise _past_the_end(what, nbytes, block.size - start)
        if block.content is None:
            raise UndefinedBehaviourError(f"{what}: {address:#x} is memory of {block.owner}")
        content = block.content[start : start + nbytes]
        return Region(place, Span.of(address, nbytes), content, device)


def _past_the_end(what: str, nbytes: int, left: int) -> UndefinedBehaviourError:
    return UndefinedBehaviourError(
        f"{what}: {nbytes} bytes pass the allocation's end by {nbytes - left}"
    )
