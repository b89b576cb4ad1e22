"""How keys and values lie in the pool: the arithmetic of each layout behind one interface.

A chunk is the run of bytes that one position takes in one piece: one plane's in `head_major`,
all planes' in `token_major`. A plane is one of (layer, key or value, KV head), in that order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from omruntime.device.base import DeviceBuffer, DeviceTensor
from omruntime.element_type import item_bytes
from omruntime.manifest import KVLayout, KVSpec, ModelFacts

POOL_NAME = "kv_pool"
Chunks = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PoolShape:
    """The pool's sizes, whatever the layout."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_blocks: int
    block_size: int
    dtype: str

    @staticmethod
    def of(model: ModelFacts, kv: KVSpec, num_blocks: int) -> PoolShape:
        """The pool of a bundle with so many blocks."""
        heads, head_dim = model.num_kv_heads, model.head_dim
        return PoolShape(model.num_layers, heads, head_dim, num_blocks, kv.block_size, kv.dtype)

    @property
    def num_planes(self) -> int:
        """Runs of head_dim values that one position takes."""
        return self.num_layers * 2 * self.num_kv_heads

    @property
    def num_slots(self) -> int:
        """Positions in all blocks."""
        return self.num_blocks * self.block_size

    @property
    def plane_bytes(self) -> int:
        """Bytes of one position in one plane."""
        return self.head_dim * item_bytes(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole pool."""
        return self.num_planes * self.num_slots * self.plane_bytes


class PoolLayout(Protocol):
    """One layout of one pool."""

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk."""
        ...

    def pool_inputs(self, buffer: DeviceBuffer) -> dict[str, DeviceTensor]:
        """The pool as the step graph's inputs."""
        ...

    def append_chunks(self, num_rows: int, rows: Chunks, slots: Chunks) -> tuple[Chunks, Chunks]:
        """Chunks of the pool, and of a step's `new_kv` with `num_rows` rows, that belong together.

        Args:
            rows, slots: int64 [n], which row goes to which slot.
        """
        ...

    def block_chunks(self, blocks: Chunks) -> Chunks:
        """All chunks of each block, in an order that is the same for every block."""
        ...


@dataclass(frozen=True, slots=True)
class HeadMajor:
    """Per layer, keys and values: [num_kv_heads, num_blocks, block_size, head_dim].

    `new_kv` is [planes, rows, head_dim].
    """

    shape: PoolShape

    @property
    def chunk_bytes(self) -> int:
        """See `PoolLayout.chunk_bytes`."""
        return self.shape.plane_bytes

    def pool_inputs(self, buffer: DeviceBuffer) -> dict[str, DeviceTensor]:
        """See `PoolLayout.pool_inputs`; one window for each layer's keys and values."""
        s = self.shape
        dims = (s.num_kv_heads, s.num_blocks, s.block_size, s.head_dim)
        windows, offset = {}, 0
        for layer in range(s.num_layers):
            for part in ("key", "value"):
                window = DeviceTensor(buffer, offset, dims, s.dtype)
                windows[f"{POOL_NAME}.{layer}.{part}"] = window
                offset += window.nbytes
        return windows

    def append_chunks(self, num_rows: int, rows: Chunks, slots: Chunks) -> tuple[Chunks, Chunks]:
        """See `PoolLayout.append_chunks`."""
        planes = self._planes()
        return (
            (planes * self.shape.num_slots + slots).ravel(),
            (planes * num_rows + rows).ravel(),
        )

    def block_chunks(self, blocks: Chunks) -> Chunks:
        """See `PoolLayout.block_chunks`."""
        positions = np.arange(self.shape.block_size, dtype=np.int64)
        slots = (blocks[:, None] * self.shape.block_size + positions).ravel()
        return (self._planes() * self.shape.num_slots + slots).ravel()

    def _planes(self) -> Chunks:
        return np.arange(self.shape.num_planes, dtype=np.int64)[:, None]


@dataclass(frozen=True, slots=True)
class TokenMajor:
    """[num_slots, planes, head_dim]; `new_kv` is [rows, planes, head_dim].

    One position is one run of bytes, and so is one block.
    """

    shape: PoolShape

    @property
    def chunk_bytes(self) -> int:
        """See `PoolLayout.chunk_bytes`."""
        return self.shape.num_planes * self.shape.plane_bytes

    def pool_inputs(self, buffer: DeviceBuffer) -> dict[str, DeviceTensor]:
        """See `PoolLayout.pool_inputs`; one window."""
        s = self.shape
        return {
            POOL_NAME: DeviceTensor(buffer, 0, (s.num_slots, s.num_planes, s.head_dim), s.dtype)
        }

    def append_chunks(self, num_rows: int, rows: Chunks, slots: Chunks) -> tuple[Chunks, Chunks]:
        """See `PoolLayout.append_chunks`."""
        return slots, rows

    def block_chunks(self, blocks: Chunks) -> Chunks:
        """See `PoolLayout.block_chunks`."""
        positions = np.arange(self.shape.block_size, dtype=np.int64)
        return (blocks[:, None] * self.shape.block_size + positions).ravel()


def make_layout(layout: KVLayout, shape: PoolShape) -> PoolLayout:
    """The layout that the manifest names."""
    return HeadMajor(shape) if layout is KVLayout.HEAD_MAJOR else TokenMajor(shape)
