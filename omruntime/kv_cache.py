"""KVCache: the device memory behind the blocks, and what is written to it.

Owns the pool buffer. Which block belongs to whom is `block_pool`'s business. All arithmetic on
the layout stands here: how new keys and values of a step reach their slots, and how one block is
copied onto another.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omruntime.device.base import Device, DeviceTensor
from omruntime.errors import BundleError
from omruntime.manifest import KVLayout, KVSpec, ModelFacts

POOL_PREFIX = "kv_pool."


class KVCache:
    """The block pool's memory in the `head_major` layout.

    One buffer holds the planes (layer, key or value, kv head), each plane the positions of
    all blocks in slot order; a chunk is one position of one plane.
    """

    def __init__(self, device: Device, model: ModelFacts, kv: KVSpec, num_blocks: int) -> None:
        """Reserve the pool.

        Raises:
            BundleError: The layout is one that this build does not write.
            OutOfDeviceMemoryError: The pool does not fit; nothing was reserved.
        """
        if kv.layout is not KVLayout.HEAD_MAJOR:
            raise BundleError(f"KV layout {kv.layout.value} is not built in; wanted head_major")
        self._device = device
        self._model = model
        self._block_size = kv.block_size
        self._dtype = kv.dtype
        self.num_blocks = num_blocks
        self._num_planes = model.num_layers * 2 * model.num_kv_heads
        self._chunk_bytes = model.head_dim * np.dtype(kv.dtype).itemsize
        self._planes = np.arange(self._num_planes, dtype=np.int64)[:, None]
        num_slots = num_blocks * kv.block_size
        buffer = device.alloc(self._num_planes * num_slots * self._chunk_bytes)
        self._pool = DeviceTensor(
            buffer, 0, (self._num_planes * num_slots, model.head_dim), kv.dtype
        )

    def pool_inputs(self) -> dict[str, DeviceTensor]:
        """The pool as the step graph's inputs, one window for each layer's keys and values."""
        shape = (self._model.num_kv_heads, self.num_blocks, self._block_size, self._model.head_dim)
        windows, offset = {}, 0
        for layer in range(self._model.num_layers):
            for part in ("key", "value"):
                window = DeviceTensor(self._pool.buffer, offset, shape, self._dtype)
                windows[f"{POOL_PREFIX}{layer}.{part}"] = window
                offset += window.nbytes
        return windows

    def append(
        self, new_kv: DeviceTensor, rows: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> None:
        """Queue the copy of a step's new keys and values to their slots.

        Args:
            new_kv: [planes, batch * tokens, head_dim], the step's output.
            rows: int64 [n], which of the batch * tokens rows hold real tokens.
            slots: int64 [n], the slot of each; distinct.
        """
        num_slots = self.num_blocks * self._block_size
        target = (self._planes * num_slots + slots).ravel()
        source = (self._planes * new_kv.shape[1] + rows).ravel()
        self._device.copy_chunks(self._pool, target, new_kv, source, self._chunk_bytes)

    def copy_blocks(self, pairs: tuple[tuple[int, int], ...]) -> None:
        """Queue copies of whole blocks, (source, target) each, over all layers."""
        if not pairs:
            return
        source, target = np.array(pairs, dtype=np.int64).T
        block_of = self._planes * self.num_blocks
        chunk_bytes = self._block_size * self._chunk_bytes
        self._device.copy_chunks(
            self._pool,
            (block_of + target).ravel(),
            self._pool,
            (block_of + source).ravel(),
            chunk_bytes,
        )

    def close(self) -> None:
        """Give the memory back."""
        self._device.free(self._pool.buffer)


def kv_bytes_per_block(model: ModelFacts, kv: KVSpec) -> int:
    """Bytes that one block takes over all layers, keys and values."""
    positions = model.num_layers * 2 * model.num_kv_heads * kv.block_size
    return positions * model.head_dim * np.dtype(kv.dtype).itemsize
