"""Device buffers and pinned host memory.

Source: CANN pyACL reference, acl.rt.malloc (what an allocation costs), acl.rt.malloc_host,
acl.rt.free (waits for nothing).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from omruntime.device.ascend.acl_constants import ALIGNMENT, MallocPolicy, MemoryAttr
from omruntime.device.ascend.driver import Driver
from omruntime.device.base import DeviceBuffer, DeviceTensor, MemoryInfo
from omruntime.errors import DeviceError, OutOfDeviceMemoryError

MIB = 1 << 20
HUGE_PAGE_BYTES = 2 * MIB


@dataclass(frozen=True, slots=True, eq=False)
class AscendBuffer:
    """A run of device memory; the address is aligned to 64 bytes."""

    address: int
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class PinnedBuffer:
    """A run of page-locked host memory and an array over it."""

    address: int
    content: NDArray[np.uint8]

    def holds(self, address: int, nbytes: int) -> bool:
        """Whether a run of host memory lies within."""
        return self.address <= address and address + nbytes <= self.address + self.content.size


def reserved_bytes(nbytes: int) -> int:
    """What an allocation takes from the device: ceil32 + 32, above 1 MiB in pages of 2 MiB."""
    padded = -(-nbytes // 32) * 32 + 32
    return padded if nbytes <= MIB else -(-padded // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES


def address_of(tensor: DeviceTensor, device_name: str) -> int:
    """Where a window begins.

    Raises:
        DeviceError: The buffer is another device's, the window passes its end, or the address
            is not aligned for asynchronous copies.
    """
    buffer = tensor.buffer
    if not isinstance(buffer, AscendBuffer):
        kind = type(buffer).__name__
        raise DeviceError(f"{device_name}: a {kind} is not a buffer of this device")
    if tensor.offset + tensor.nbytes > buffer.nbytes:
        raise DeviceError(
            f"{device_name}: {tensor.nbytes} bytes at {tensor.offset} pass the buffer's end"
        )
    if tensor.offset % ALIGNMENT:
        raise DeviceError(
            f"{device_name}: the offset {tensor.offset} is not a multiple of {ALIGNMENT}"
        )
    return buffer.address + tensor.offset


class DeviceMemory:
    """What is allocated on one device, and what pinned memory belongs to it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._acl = driver.acl
        self._buffers: set[AscendBuffer] = set()
        self._pinned: list[PinnedBuffer] = []

    def alloc(self, nbytes: int) -> AscendBuffer:
        """Reserve device memory.

        Raises:
            OutOfDeviceMemoryError: Too little is free.
        """
        address, code = self._acl.rt.malloc(nbytes, MallocPolicy.HUGE_FIRST)
        try:
            self._driver.check("acl.rt.malloc", code)
        except OutOfDeviceMemoryError as error:
            raise OutOfDeviceMemoryError(
                f"{self._driver.device_name}: {nbytes:,} bytes asked, "
                f"{self.info().free_bytes:,} bytes free ({error})"
            ) from error
        buffer = AscendBuffer(address, nbytes)
        self._buffers.add(buffer)
        return buffer

    def free(self, buffer: DeviceBuffer) -> None:
        """Give a buffer back; nothing queued may use it.

        Raises:
            DeviceError: It is not allocated here.
        """
        if not isinstance(buffer, AscendBuffer) or buffer not in self._buffers:
            name = self._driver.device_name
            raise DeviceError(f"{name}: free of a buffer that is not allocated here")
        self._buffers.discard(buffer)
        self._driver.check("acl.rt.free", self._acl.rt.free(buffer.address))

    def pin(self, nbytes: int) -> PinnedBuffer:
        """Reserve pinned host memory, zeroed.

        Raises:
            DeviceError: The driver refused.
        """
        address, code = self._acl.rt.malloc_host(nbytes)
        self._driver.check("acl.rt.malloc_host", code)
        content = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
        content.fill(0)
        pinned = PinnedBuffer(address, content)
        self._pinned.append(pinned)
        return pinned

    def unpin(self, pinned: PinnedBuffer) -> None:
        """Give pinned memory back; no copy of it may be queued, no array over it used again."""
        self._pinned.remove(pinned)
        self._driver.check("acl.rt.free_host", self._acl.rt.free_host(pinned.address))

    def is_pinned(self, address: int, nbytes: int) -> bool:
        """Whether a run of host memory is pinned, and aligned for asynchronous copies."""
        is_aligned = address % ALIGNMENT == 0
        return is_aligned and any(pinned.holds(address, nbytes) for pinned in self._pinned)

    def info(self) -> MemoryInfo:
        """Free and total memory; 310P answers for DDR, chips without DDR for HBM.

        Raises:
            DeviceError: The driver refused.
        """
        for attr in MemoryAttr:
            free, total, code = self._acl.rt.get_mem_info(attr)
            self._driver.check("acl.rt.get_mem_info", code)
            if total:
                return MemoryInfo(free, total)
        raise DeviceError(f"{self._driver.device_name}: the driver reports no memory at all")

    def closing_steps(self, *, leaves_device: bool = False) -> list[Callable[[], None]]:
        """What gives everything back that is still held.

        Args:
            leaves_device: Whether device memory is left to the reset of the device.
        """
        buffers = [] if leaves_device else [partial(self.free, buffer) for buffer in self._buffers]
        pinned = [partial(self.unpin, pinned) for pinned in self._pinned]
        return [*buffers, *pinned]
