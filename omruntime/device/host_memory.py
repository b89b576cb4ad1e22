"""Device memory that is host memory: what the devices that run on the host's cores share.

Owns buffers and copies. Copies in and out are plain and done when they return, and a fetched
output is a view. Programs belong to each device's own module.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omruntime.device.base import DeviceBuffer, DeviceTensor, MemoryInfo, MemoryItem
from omruntime.element_type import storage_dtype
from omruntime.errors import BundleError, DeviceError, OutOfDeviceMemoryError
from omruntime.manifest import ProgramSpec, TensorSpec


class HostBuffer:
    """A run of zeroed host memory; zeroed so that padding never reads NaN."""

    def __init__(self, nbytes: int) -> None:
        # Written, not just reserved: a pool that the machine cannot hold fails here and not under
        # load, and no request pays for the first touch of a page.
        self.bytes: NDArray[np.uint8] = np.empty(nbytes, np.uint8)
        self.bytes.fill(0)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.bytes.nbytes


class HostMemoryDevice:
    """The host's cores as a device, all but its programs."""

    name: str
    soc = "cpu"
    alignment = 1
    prepares_buckets: bool
    runs_asynchronously = False

    def __init__(self, num_threads: int = 0) -> None:
        self.num_threads = num_threads or len(os.sched_getaffinity(0))
        self._live: set[HostBuffer] = set()

    def alloc(self, nbytes: int) -> DeviceBuffer:
        """See `Device.alloc`; refuses what passes the memory that is free now."""
        free_bytes = self.memory_info().free_bytes
        if nbytes > free_bytes:
            raise OutOfDeviceMemoryError(
                f"{self.name}: {nbytes:,} bytes asked, {free_bytes:,} bytes free; lower "
                f"--kv-memory-mib or --num-blocks"
            )
        buffer = HostBuffer(nbytes)
        self._live.add(buffer)
        return buffer

    def reserved_bytes(self, nbytes: int) -> int:
        """See `Device.reserved_bytes`."""
        return nbytes

    def free(self, buffer: DeviceBuffer) -> None:
        """See `Device.free`."""
        if buffer not in self._live:
            raise DeviceError(f"{self.name}: free of a buffer that is not allocated here")
        self._live.discard(_host(buffer))

    def host_array(self, nbytes: int) -> NDArray[np.uint8]:
        """See `Device.host_array`."""
        return np.zeros(nbytes, np.uint8)

    def copy_in(self, target: DeviceTensor, source: NDArray[Any]) -> None:
        """See `Device.copy_in`; done when it returns."""
        view(target)[...] = source

    def copy_out(self, source: DeviceTensor) -> NDArray[Any]:
        """See `Device.copy_out`; a view."""
        return view(source)

    def copy_chunks(
        self,
        target: DeviceTensor,
        target_chunks: NDArray[np.int64],
        source: DeviceTensor,
        source_chunks: NDArray[np.int64],
        chunk_bytes: int,
    ) -> None:
        """See `Device.copy_chunks`; one vectorised copy."""
        # A row of void items copies as one memcpy instead of byte by byte.
        chunk = np.dtype((np.void, chunk_bytes))
        rows = _bytes(source).view(chunk)[source_chunks]
        _bytes(target).view(chunk)[target_chunks] = rows

    def clear(self, target: DeviceTensor) -> None:
        """See `Device.clear`; done when it returns."""
        _bytes(target).fill(0)

    def plan_programs(self, specs: Iterable[ProgramSpec], bundle: Path) -> tuple[MemoryItem, ...]:
        """See `Device.plan_programs`; no library of these devices says."""
        return ()

    def synchronize(self) -> None:
        """Nothing is ever queued."""

    def memory_info(self) -> MemoryInfo:
        """Memory of the machine that a new allocation can get, without swap."""
        sizes = {}
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            sizes[name] = int(rest.split()[0]) * 1024
        return MemoryInfo(sizes["MemAvailable"], sizes["MemTotal"])

    def close(self) -> None:
        """Forget all buffers."""
        self._live.clear()


def view(tensor: DeviceTensor) -> NDArray[Any]:
    """The tensor's memory as an array of its shape, and of the dtype that stores its elements."""
    return _bytes(tensor).view(storage_dtype(tensor.dtype)).reshape(tensor.shape)


def require_same_tensors(
    spec: ProgramSpec, input_names: Iterable[str], output_names: Iterable[str]
) -> None:
    """Hold a loaded graph against the manifest.

    Raises:
        BundleError: It takes or gives other tensors.
    """
    for kind, wanted, got in (
        ("inputs", spec.inputs, list(input_names)),
        ("outputs", spec.outputs, list(output_names)),
    ):
        wanted_names = [tensor.name for tensor in wanted]
        if sorted(wanted_names) != sorted(got):
            raise BundleError(
                f"{spec.path}: the graph's {kind} are {got}, the manifest lists "
                f"{wanted_names}; build the bundle again"
            )


def require_bound(
    device: str, specs: tuple[TensorSpec, ...], tensors: Mapping[str, DeviceTensor]
) -> None:
    """Refuse a binding with other tensors than the program has.

    Raises:
        DeviceError: One is missing or unknown.
    """
    wanted = {spec.name for spec in specs}
    if wanted != tensors.keys():
        raise DeviceError(f"{device}: bound {sorted(tensors)}, the program takes {sorted(wanted)}")


def _bytes(tensor: DeviceTensor) -> NDArray[np.uint8]:
    window = _host(tensor.buffer).bytes[tensor.offset : tensor.offset + tensor.nbytes]
    if window.nbytes != tensor.nbytes:
        raise DeviceError(f"{tensor.nbytes} bytes at {tensor.offset} pass the buffer's end")
    return window


def _host(buffer: DeviceBuffer) -> HostBuffer:
    if not isinstance(buffer, HostBuffer):
        raise DeviceError(f"a {type(buffer).__name__} is not a buffer of the host's memory")
    return buffer
