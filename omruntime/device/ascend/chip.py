"""Chip: the memory of one Ascend device, and the copies that its one stream puts in order.

Nothing waits but `synchronize`, which lets other Python threads run, as pyACL's other blocking
calls do not.

One thread at a time; it may change between calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omruntime.device.ascend.acl_constants import ALIGNMENT, CopyKind
from omruntime.device.ascend.chunk_runs import join_chunks
from omruntime.device.ascend.driver import Driver
from omruntime.device.ascend.library import AclLibrary
from omruntime.device.ascend.loading import unload_model
from omruntime.device.ascend.memory import (
    AscendBuffer,
    DeviceMemory,
    PinnedBuffer,
    address_of,
    reserved_bytes,
)
from omruntime.device.ascend.session import DeviceSession, run_all
from omruntime.device.base import DeviceBuffer, DeviceTensor, MemoryInfo
from omruntime.errors import DeviceError, StillRunningError

logger = logging.getLogger(__name__)


class Chip:
    """One open chip; what `Device` asks of memory, copies and waiting.

    Attributes:
        driver: The acl module and the check of its answers.
    """

    alignment = ALIGNMENT

    def __init__(
        self, name: str, device_id: int, library: AclLibrary, timeout_ms: int | None
    ) -> None:
        """Open the chip.

        Args:
            name: As the user names it, such as `ascend:0`.
            library: The acl module, shared by the devices of the process.
            timeout_ms: Longest wait for queued work; None waits for ever.

        Raises:
            DeviceError: The driver refused; nothing stays open.
        """
        self.driver = Driver(library.acl, name)
        self._acl = library.acl
        self._name = name
        self._session = DeviceSession(library, self.driver, device_id, timeout_ms)
        self._memory = DeviceMemory(self.driver)
        self._mirrors: dict[tuple[DeviceBuffer, int], PinnedBuffer] = {}
        self._bounces: list[PinnedBuffer] = []
        self._is_queued = False
        self._holds_lost_model = False

    @property
    def name(self) -> str:
        """See `Device.name`."""
        return self._name

    @property
    def stream(self) -> int:
        """The stream that everything is queued on."""
        return self._session.stream

    def enter(self) -> None:
        """Make this device the calling thread's current one."""
        self._session.enter()

    def note_queued(self) -> None:
        """Remember that memory is in use until the next `synchronize`."""
        self._is_queued = True

    def alloc(self, nbytes: int) -> AscendBuffer:
        """See `Device.alloc`."""
        self.enter()
        return self._memory.alloc(nbytes)

    def reserved_bytes(self, nbytes: int) -> int:
        """See `Device.reserved_bytes`."""
        return reserved_bytes(nbytes)

    def free(self, buffer: DeviceBuffer) -> None:
        """See `Device.free`; waits for queued work, which `acl.rt.free` would not."""
        if self._is_queued:
            self.synchronize()
        self._memory.free(buffer)

    def host_array(self, nbytes: int) -> NDArray[np.uint8]:
        """See `Device.host_array`; page-locked, so that copies are asynchronous."""
        self.enter()
        return self._memory.pin(nbytes).content

    def copy_in(self, target: DeviceTensor, source: NDArray[Any]) -> None:
        """See `Device.copy_in`; what is no `host_array` is copied to pinned memory first."""
        self.enter()
        address = address_of(target, self._name)
        if source.nbytes != target.nbytes:
            raise DeviceError(
                f"{self._name}: {source.nbytes} bytes for a window of {target.nbytes}"
            )
        host = self._pinned_address(source)
        self._copy(address, host, target.nbytes, CopyKind.HOST_TO_DEVICE)

    def copy_out(self, source: DeviceTensor) -> NDArray[Any]:
        """See `Device.copy_out`."""
        self.enter()
        address = address_of(source, self._name)
        mirror = self._mirror(source)
        self._copy(mirror.address, address, source.nbytes, CopyKind.DEVICE_TO_HOST)
        view = mirror.content[: source.nbytes].view(source.dtype).reshape(source.shape)
        view.flags.writeable = False
        return view

    def copy_chunks(
        self,
        target: DeviceTensor,
        target_chunks: NDArray[np.int64],
        source: DeviceTensor,
        source_chunks: NDArray[np.int64],
        chunk_bytes: int,
    ) -> None:
        """See `Device.copy_chunks`; chunks that go on on both sides are one copy."""
        self.enter()
        if chunk_bytes % ALIGNMENT:
            raise DeviceError(
                f"{self._name}: chunks of {chunk_bytes} bytes, wanted a multiple of {ALIGNMENT}"
            )
        to, from_ = address_of(target, self._name), address_of(source, self._name)
        runs = join_chunks(target_chunks, source_chunks)
        for first, last in ((runs.targets, target), (runs.sources, source)):
            ends = [start + length for start, length in zip(first, runs.lengths, strict=True)]
            if max(ends, default=0) * chunk_bytes > last.nbytes:
                raise DeviceError(f"{self._name}: chunks pass the window's end")
        for i, length in enumerate(runs.lengths):
            self._copy(
                to + runs.targets[i] * chunk_bytes,
                from_ + runs.sources[i] * chunk_bytes,
                length * chunk_bytes,
                CopyKind.DEVICE_TO_DEVICE,
            )

    def clear(self, target: DeviceTensor) -> None:
        """See `Device.clear`."""
        self.enter()
        address, nbytes = address_of(target, self._name), target.nbytes
        code = self._acl.rt.memset_async(address, nbytes, 0, nbytes, self.stream)
        self.driver.check("acl.rt.memset_async", code)
        self._is_queued = True

    def unload_model(self, model_id: int, weight: AscendBuffer | None) -> None:
        """Unload a model and free its weights.

        A model that stays loaded keeps all device memory with it until the device is reset: what
        it was loaded into must outlive it.

        Raises:
            DeviceError: The driver refused.

        Source: CANN model API reference, aclmdlUnload and aclmdlLoadFromFileWithMem.
        """
        try:
            unload_model(self.driver, model_id)
        except DeviceError:
            self._holds_lost_model = True
            raise
        if weight is not None:
            self.free(weight)

    def synchronize(self) -> None:
        """See `Device.synchronize`; other Python threads run meanwhile."""
        self.enter()
        self._wait()

    def _wait(self) -> None:
        self._session.synchronize()
        self._is_queued = False
        bounces, self._bounces = self._bounces, []
        for bounce in bounces:
            self._memory.unpin(bounce)

    def settle(self) -> Callable[[], None]:
        """Wait before something is taken away.

        Returns:
            A step for `run_all` that raises what failed meanwhile, if something did.

        Raises:
            StillRunningError: Work does not end, so nothing may be taken away.
            DeviceError: The context cannot be entered, so nothing was waited for, and what is
                taken away would be taken in whatever context the thread has.
        """
        self.enter()
        failure: DeviceError | None = None
        try:
            self._wait()
        except StillRunningError:
            logger.error("nothing is closed name=%s: work is still running", self._name)
            raise
        except DeviceError as error:
            failure = error

        def tell() -> None:
            if failure is not None:
                raise failure

        return tell

    def memory_info(self) -> MemoryInfo:
        """See `Device.memory_info`."""
        self.enter()
        return self._memory.info()

    def _give_memory_back(self) -> None:
        run_all(self._memory.closing_steps(leaves_device=self._holds_lost_model))

    def _pinned_address(self, source: NDArray[Any]) -> int:
        address = int(source.__array_interface__["data"][0])
        if source.flags.c_contiguous and self._memory.is_pinned(address, source.nbytes):
            return address
        bounce = self._memory.pin(source.nbytes)
        self._bounces.append(bounce)
        bounce.content.view(source.dtype).reshape(source.shape)[...] = source
        return bounce.address

    def _mirror(self, source: DeviceTensor) -> PinnedBuffer:
        """Pinned memory for what comes out of a window; it stays for the next time."""
        key = (source.buffer, source.offset)
        mirror = self._mirrors.get(key)
        if mirror is None or mirror.content.size < source.nbytes:
            # A smaller one stays pinned as well: an array of it may still be read.
            mirror = self._mirrors[key] = self._memory.pin(source.buffer.nbytes - source.offset)
        return mirror

    def _copy(self, target: int, source: int, nbytes: int, kind: CopyKind) -> None:
        code = self._acl.rt.memcpy_async(target, nbytes, source, nbytes, kind, self.stream)
        self.driver.check("acl.rt.memcpy_async", code)
        self._is_queued = True
