"""InputArena: a step's integer inputs side by side, so that one copy brings them to the device.

Owns where each input lies in a bucket. The host's side and the device's are laid out alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

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
        self._host = device.host_array(max(sizes.values()))
        self._copies = {
            bucket: (DeviceTensor(self._buffer, 0, (nbytes,), "uint8"), self._host[:nbytes])
            for bucket, nbytes in sizes.items()
        }

    def host_inputs(self, bucket: Bucket) -> HostInputs:
        """The bucket's inputs as views of the host's side."""
        views = {}
        for name, (offset, shape) in _places(bucket).items():
            end = offset + _nbytes(shape)
            views[name] = self._host[offset:end].view(_DTYPE).reshape(shape)
        return HostInputs(**views)

    def device_tensors(self, bucket: Bucket) -> Mapping[str, DeviceTensor]:
        """The bucket's inputs on the device."""
        return {
            name: DeviceTensor(self._buffer, offset, shape, _DTYPE.name)
            for name, (offset, shape) in _places(bucket).items()
        }

    def copy_in(self, bucket: Bucket) -> None:
        """Queue the copy of the bucket's inputs; the host's side must not change before it ran."""
        self._device.copy_in(*self._copies[bucket])

    def clear(self) -> None:
        """Make the inputs padding throughout."""
        self._host.fill(0)

    def close(self) -> None:
        """Give the device memory back."""
        self._device.free(self._buffer)


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
