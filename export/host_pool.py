"""A block pool in host memory, by layout, as the parity gate and a replay fill it.

Owns where a token's keys and values lie in the pool's arrays and in a step's output. What is
written when is `paged_runner.py`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from export.bfloat16 import from_bits, to_bits
from export.step_shape import StepShape
from omruntime.buckets import Bucket
from omruntime.manifest import KVLayout

_SEED = 7
# Large enough that a wrongly visible position shows, small enough to stay finite in a product.
_NOISE = 50.0

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


class HostPool(Protocol):
    """Keys and values of all blocks; noise wherever nothing was written."""

    def inputs(self) -> dict[str, NDArray[np.generic]]:
        """The pool as the step graph's inputs; no copies."""

    def write(self, blocks: Integers, offsets: Integers, new_kv: Floats) -> None:
        """Write tokens into their slots.

        Args:
            blocks, offsets: The block of each token, and its place therein.
            new_kv: [layers, 2, num_kv_heads, tokens, head_dim].
        """

    def split(self, new_kv: NDArray[np.floating], bucket: Bucket) -> Floats:
        """A step's output as [layers, 2, num_kv_heads, batch, tokens, head_dim]."""


def host_pool(shape: StepShape, num_blocks: int) -> HostPool:
    """A pool of so many blocks, the null block included, full of seeded noise."""
    if shape.layout is KVLayout.TOKEN_MAJOR:
        return _TokenMajor(shape, num_blocks)
    return _HeadMajor(shape, num_blocks)


class _HeadMajor:
    def __init__(self, shape: StepShape, num_blocks: int) -> None:
        self._shape = shape
        noise = _noise(shape, (shape.num_kv_heads, num_blocks, shape.block_size, shape.head_dim))
        self._parts = [noise.copy() for _ in range(2 * shape.num_layers)]

    def inputs(self) -> dict[str, NDArray[np.generic]]:
        names = (f"kv_pool.{i // 2}.{('key', 'value')[i % 2]}" for i in range(len(self._parts)))
        return dict(zip(names, self._parts, strict=True))

    def write(self, blocks: Integers, offsets: Integers, new_kv: Floats) -> None:
        parts = new_kv.reshape(len(self._parts), *new_kv.shape[2:])
        for pool, part in zip(self._parts, parts, strict=True):
            pool[:, blocks, offsets] = _stored(self._shape, part)

    def split(self, new_kv: NDArray[np.floating], bucket: Bucket) -> Floats:
        shape = self._shape
        whole = new_kv.reshape(
            shape.num_layers, 2, shape.num_kv_heads, bucket.batch, bucket.tokens, shape.head_dim
        )
        if whole.dtype == np.uint16:
            return from_bits(whole.view(np.uint16))
        return whole.astype(np.float32, copy=False)


class _TokenMajor:
    def __init__(self, shape: StepShape, num_blocks: int) -> None:
        self._shape = shape
        size = (num_blocks * shape.block_size, shape.num_planes, shape.head_dim)
        self._pool = _noise(shape, size)

    def inputs(self) -> dict[str, NDArray[np.generic]]:
        return {"kv_pool": self._pool}

    def write(self, blocks: Integers, offsets: Integers, new_kv: Floats) -> None:
        slots = blocks * self._shape.block_size + offsets
        tokens = new_kv.transpose(3, 0, 1, 2, 4)
        self._pool[slots] = tokens.reshape(len(slots), *self._pool.shape[1:])

    def split(self, new_kv: NDArray[np.floating], bucket: Bucket) -> Floats:
        shape = self._shape
        whole = new_kv.reshape(
            bucket.batch, bucket.tokens, shape.num_layers, 2, shape.num_kv_heads, shape.head_dim
        )
        return whole.transpose(2, 3, 4, 0, 1, 5).astype(np.float32)


def _noise(shape: StepShape, size: tuple[int, ...]) -> NDArray[Any]:
    rng = np.random.default_rng(_SEED)
    noise = rng.standard_normal(size, np.float32) * np.float32(_NOISE)
    return _stored(shape, noise)


def _stored(shape: StepShape, values: NDArray[np.floating]) -> NDArray[Any]:
    """Values as the pool holds them; bfloat16 as its bits."""
    if shape.dtype == "bfloat16":
        return to_bits(values.astype(np.float32, copy=False))
    return values.astype(shape.dtype, copy=False)
