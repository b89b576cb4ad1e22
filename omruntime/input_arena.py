"""InputArena: a step's integer inputs side by side, so that one copy brings them to the device.

Owns where each input lies in a bucket. Both sides are laid out alike. The host has two, used in
turn: a step is laid out in one while the device may still read the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from omruntime.buckets import Bucket
from omruntime.device.base import Device, DeviceTensor
from omruntime.inputs import HostInputs

# A cache line of the host, and what asynchronous copies of Ascend chips want.
_GRANULE_BYTES = 64
_DTYPE = np.dtype(np.int32)


class InputArena:
    """Host and device memory for the integer inputs of all buckets, which share it."""

    def __init__(self, device: Device, buckets: Iterable[Bucket]) -> None:
        """Reserve for the largest bucket.

        Raises:
            OutOfDeviceMemoryError, DeviceError: The device refused.
        """
        self._device = device
        sizes = {bucket: arena_bytes(bucket) for bucket in buckets}
        self._buffer = device.alloc(max(sizes.values()))
        self._sides = [_HostSide(device.host_array(max(sizes.values())), sizes) for _ in range(2)]
        self._targets = {
            bucket: DeviceTensor(self._buffer, 0, (nbytes,), "uint8")
            for bucket, nbytes in sizes.items()
        }

    def host_inputs(self, bucket: Bucket) -> HostInputs:
        """The bucket's inputs as views of the side that the next `copy_in` takes."""
        return self._sides[0].inputs[bucket]

    def device_tensors(self, bucket: Bucket) -> Mapping[str, DeviceTensor]:
        """The bucket's inputs on the device."""
        return {
            name: DeviceTensor(self._buffer, offset, shape, _DTYPE.name)
            for name, (offset, shape) in _places(bucket).items()
        }

    def copy_in(self, bucket: Bucket) -> None:
        """Queue the copy of the bucket's inputs, and turn to the other side.

        This side must not change before the copy ran, so not more than one may be queued.
        """
        self._device.copy_in(self._targets[bucket], self._sides[0].contents[bucket])
        self._sides.reverse()

    def clear(self) -> None:
        """Make the inputs that the next `copy_in` takes padding throughout."""
        self._sides[0].memory.fill(0)

    def close(self) -> None:
        """Give the device memory back."""
        self._device.free(self._buffer)


class _HostSide:
    """One layout of all buckets over the same host memory."""

    def __init__(self, memory: NDArray[np.uint8], sizes: Mapping[Bucket, int]) -> None:
        self.memory = memory
        self.contents = {bucket: memory[:nbytes] for bucket, nbytes in sizes.items()}
        self.inputs = {bucket: _views(memory, bucket) for bucket in sizes}


def _views(memory: NDArray[np.uint8], bucket: Bucket) -> HostInputs:
    views = {}
    for name, (offset, shape) in _places(bucket).items():
        views[name] = memory[offset : offset + _nbytes(shape)].view(_DTYPE).reshape(shape)
    return HostInputs(**views)


def arena_bytes(bucket: Bucket) -> int:
    """Bytes that a bucket's inputs take."""
    return sum(_padded(shape) for shape in _shapes(bucket).values())


def _shapes(bucket: Bucket) -> Mapping[str, tuple[int, ...]]:
    return {name: array.shape for name, array in HostInputs.zeros(bucket).named().items()}


def _places(bucket: Bucket) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Offset and shape of each input."""
    places, offset = {}, 0
    for name, shape in _shapes(bucket).items():
        places[name] = (offset, shape)
        offset += _padded(shape)
    return places


def _nbytes(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * _DTYPE.itemsize


def _padded(shape: tuple[int, ...]) -> int:
    return -(-_nbytes(shape) // _GRANULE_BYTES) * _GRANULE_BYTES
