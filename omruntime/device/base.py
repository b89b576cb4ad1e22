"""The device seam: all that the engine asks of a backend.

A backend is written from this file alone: one module with a class for each protocol, and its name
in `omruntime/device/__init__.py`. All calls come from the one thread that owns the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from omruntime.buckets import Bucket
from omruntime.element_type import item_bytes
from omruntime.manifest import ProgramSpec


class DeviceBuffer(Protocol):
    """A run of device memory that `Device.alloc` reserved."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceTensor:
    """A typed window into a buffer.

    Attributes:
        offset: First byte within the buffer.
        shape: Concrete dimensions, row major, without gaps.
        dtype: As NumPy names it, or `bfloat16`.
    """

    buffer: DeviceBuffer
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * item_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Device memory in bytes."""

    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One line of a memory budget."""

    name: str
    nbytes: int


class Program(Protocol):
    """A loaded program file."""

    def bind(
        self,
        bucket: Bucket,
        inputs: Mapping[str, DeviceTensor],
        outputs: Mapping[str, DeviceTensor],
    ) -> None:
        """Fix the tensors that `run(bucket)` reads and writes; once for each bucket.

        The addresses stay valid and unchanged until `unload`.

        Raises:
            DeviceError: A tensor is missing, unknown or of the wrong shape or dtype.
        """
        ...

    def run(self, bucket: Bucket) -> None:
        """Queue one run over the bound tensors.

        Raises:
            DeviceError: The bucket was never bound, or the driver refused.
        """
        ...

    def unload(self) -> None:
        """Give back what the program holds; its bindings end."""
        ...


class Device(Protocol):
    """One chip, or the host's cores."""

    @property
    def name(self) -> str:
        """The name it was opened by, such as `cpu` or `ascend:0`."""
        ...

    @property
    def soc(self) -> str:
        """What the manifest's `soc` must equal, such as `cpu` or `Ascend310P3`."""
        ...

    @property
    def alignment(self) -> int:
        """Bytes that offsets of copied windows, and chunk sizes, must be multiples of."""
        ...

    @property
    def prepares_buckets(self) -> bool:
        """Whether a bucket's first run makes ready what later ones use, such as code for its sizes.

        If so, every bucket is run at each start; else one whose time is known may go without.
        """
        ...

    @property
    def runs_asynchronously(self) -> bool:
        """Whether `run` and the copies return before they are done, and need no core of the host.

        If so, the next step is prepared between them and `synchronize`; else that would gain
        nothing.
        """
        ...

    def alloc(self, nbytes: int) -> DeviceBuffer:
        """Reserve `nbytes` (above 0) until `free`; the content is undefined.

        Raises:
            OutOfDeviceMemoryError: Refused; nothing was reserved.
        """
        ...

    def reserved_bytes(self, nbytes: int) -> int:
        """What `alloc` takes from the device, rounding included."""
        ...

    def free(self, buffer: DeviceBuffer) -> None:
        """Give back a buffer of `alloc`, once; waits for queued work.

        Raises:
            DeviceError: It is not this device's, or was freed before.
        """
        ...

    def host_array(self, nbytes: int) -> NDArray[np.uint8]:
        """Zeroed host memory that copies fastest to and from the device; it ends with the device.

        Raises:
            DeviceError: Refused.
        """
        ...

    def copy_in(self, target: DeviceTensor, source: NDArray[Any]) -> None:
        """Queue host to device; `source` may change only after `synchronize`."""
        ...

    def copy_out(self, source: DeviceTensor) -> NDArray[Any]:
        """Queue device to host; the returned array has the content after `synchronize`.

        The array is read-only by agreement and stands until the next `run`, or the next
        `copy_out` of the same buffer: where host and device share memory it is a view, not a
        copy.
        """
        ...

    def copy_chunks(
        self,
        target: DeviceTensor,
        target_chunks: NDArray[np.int64],
        source: DeviceTensor,
        source_chunks: NDArray[np.int64],
        chunk_bytes: int,
    ) -> None:
        """Queue device-to-device copies of equal chunks.

        Chunk i goes from byte `source_chunks[i] * chunk_bytes` of `source` to byte
        `target_chunks[i] * chunk_bytes` of `target`. Target chunks are distinct; chunks of the
        two sides do not overlap.
        """
        ...

    def clear(self, target: DeviceTensor) -> None:
        """Queue writing zeros."""
        ...

    def plan_programs(self, specs: Iterable[ProgramSpec], bundle: Path) -> tuple[MemoryItem, ...]:
        """What loading these programs in this order will take; reserves nothing.

        Empty where the device cannot say before it loads.

        Raises:
            BundleError: A file is not for this device.
            DeviceError: The driver refused.
        """
        ...

    def load_program(self, spec: ProgramSpec, bundle: Path) -> Program:
        """Load the program file of a bundle.

        Raises:
            BundleError: The file does not fit `spec`.
            DeviceError: The driver refused.
        """
        ...

    def synchronize(self) -> None:
        """Wait until everything queued is done.

        Raises:
            DeviceError: Something queued failed.
        """
        ...

    def memory_info(self) -> MemoryInfo:
        """Free and total memory now."""
        ...

    def close(self) -> None:
        """End the device in the order the driver wants; all buffers and programs end with it."""
        ...
