"""KVCache: the device memory behind the blocks, and what is written to it.

Owns the pool buffer. Which block belongs to whom is `block_pool`'s business; how positions lie
in the pool is `kv_layout`'s.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omruntime.blocks.kv_layout import PoolShape, make_layout
from omruntime.device.base import Device, DeviceTensor
from omruntime.errors import BundleError
from omruntime.manifest import KVSpec, ModelFacts


class KVCache:
    """The block pool's memory."""

    def __init__(self, device: Device, model: ModelFacts, kv: KVSpec, num_blocks: int) -> None:
        """Reserve the pool and clear it, so that what was never written holds no NaN.

        Raises:
            BundleError: The device cannot copy single positions of this pool.
            OutOfDeviceMemoryError: The pool does not fit; nothing was reserved.
        """
        shape = PoolShape.of(model, kv, num_blocks)
        self.num_blocks = num_blocks
        self._device = device
        self._layout = make_layout(kv.layout, shape)
        if self._layout.chunk_bytes % device.alignment:
            raise BundleError(
                f"one position of the KV pool takes {self._layout.chunk_bytes} bytes in the "
                f"layout {kv.layout.value}; {device.name} copies multiples of {device.alignment}"
            )
        self._position_bytes = shape.num_planes * shape.plane_bytes
        buffer = device.alloc(shape.nbytes)
        self._pool = DeviceTensor(buffer, 0, (shape.nbytes,), "uint8")
        device.clear(self._pool)

    def pool_inputs(self) -> dict[str, DeviceTensor]:
        """The pool as the step graph's inputs."""
        return self._layout.pool_inputs(self._pool.buffer)

    def append(
        self, new_kv: DeviceTensor, rows: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> None:
        """Queue the copy of a step's new keys and values to their slots.

        Args:
            new_kv: The step's output, [planes, batch * tokens, head_dim] or
                [batch * tokens, planes, head_dim] by layout.
            rows: int64 [n], which of the batch * tokens rows hold real tokens.
            slots: int64 [n], the slot of each; distinct.
        """
        chunk_bytes = self._layout.chunk_bytes
        num_rows = new_kv.nbytes // self._position_bytes
        target, source = self._layout.append_chunks(num_rows, rows, slots)
        self._device.copy_chunks(self._pool, target, new_kv, source, chunk_bytes)

    def copy_blocks(self, pairs: tuple[tuple[int, int], ...]) -> None:
        """Queue copies of whole blocks, (source, target) each, over all layers."""
        if not pairs:
            return
        sources, targets = np.array(pairs, dtype=np.int64).T
        self._device.copy_chunks(
            self._pool,
            self._layout.block_chunks(targets),
            self._pool,
            self._layout.block_chunks(sources),
            self._layout.chunk_bytes,
        )

    def close(self) -> None:
        """Give the memory back."""
        self._device.free(self._pool.buffer)


def kv_bytes_per_block(model: ModelFacts, kv: KVSpec) -> int:
    """Bytes that one block takes over all layers, keys and values."""
    return PoolShape.of(model, kv, 1).nbytes
