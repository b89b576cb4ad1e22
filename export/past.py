"""Past keys and values out of the block pool, and new ones into the step's output, by layout.

Owns the tensors of one pool layout inside a traced step. Which layout a device has is its
profile's; attention itself is `paged_attention.py`.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from export.profiles import PastGather
from export.step_shape import StepShape


class Past(Protocol):
    """The pool of one step, as a layer's attention reads it."""

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's past keys and values, each [num_kv_heads, batch, past positions, head_dim]."""

    def collect(self, new_kv: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The step's output `new_kv`.

        Args:
            new_kv: Of each layer, [batch, num_kv_heads, tokens, head_dim].
        """


def past_of(
    gather: PastGather, shape: StepShape, pools: list[Tensor], block_tables: Tensor
) -> Past:
    """The past of one step.

    Args:
        pools: As the graph's inputs hold them; finite everywhere, as masked positions still
            enter a product with zero.
        block_tables: int32 [batch, past_blocks].
    """
    if gather is PastGather.BLOCKS:
        return _Blocks(shape, pools, block_tables)
    (pool,) = pools
    return (_Rows if gather is PastGather.ROWS else _Axes)(shape, pool, block_tables)


class _Blocks:
    """Head-major: a pool for each layer and part, [num_kv_heads, num_blocks, block_size, dim]."""

    def __init__(self, shape: StepShape, pools: list[Tensor], block_tables: Tensor) -> None:
        self._shape = shape
        self._pools = pools
        self._tables = block_tables

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._gather(self._pools[2 * layer]), self._gather(self._pools[2 * layer + 1])

    def collect(self, new_kv: list[tuple[Tensor, Tensor]]) -> Tensor:
        shape = (self._shape.num_kv_heads, -1, self._shape.head_dim)
        rows = [part.permute(1, 0, 2, 3).reshape(shape) for pair in new_kv for part in pair]
        return torch.cat(rows, dim=0)

    def _gather(self, pool: Tensor) -> Tensor:
        # index_select becomes a Gather; indexing by a tensor would transpose the whole pool.
        blocks = pool.index_select(1, self._tables.reshape(-1))
        return blocks.reshape(
            self._shape.num_kv_heads, self._tables.shape[0], -1, self._shape.head_dim
        )


class _TokenMajor:
    """One pool [num_slots, planes, head_dim]; what the two ways to read it share."""

    def __init__(self, shape: StepShape, pool: Tensor, block_tables: Tensor) -> None:
        self._shape = shape
        self._pool = pool
        self._tables = block_tables

    def collect(self, new_kv: list[tuple[Tensor, Tensor]]) -> Tensor:
        shape = (-1, self._shape.num_kv_heads, self._shape.head_dim)
        planes = [part.permute(0, 2, 1, 3).reshape(shape) for pair in new_kv for part in pair]
        return torch.cat(planes, dim=1)


class _Rows(_TokenMajor):
    """Heads of positions by their row numbers, in the order that attention wants.

    So the Gather itself brings the heads to the front, and nothing is transposed.
    """

    def __init__(self, shape: StepShape, pool: Tensor, block_tables: Tensor) -> None:
        super().__init__(shape, pool, block_tables)
        self._flat = pool.reshape(-1, shape.head_dim)
        offsets = torch.arange(shape.block_size, dtype=torch.int32)
        slots = block_tables[:, :, None] * shape.block_size + offsets
        heads = torch.arange(shape.num_kv_heads, dtype=torch.int32)[:, None, None]
        # [num_kv_heads, batch, past positions], of layer 0's keys
        self._first = slots.reshape(1, block_tables.shape[0], -1) * shape.num_planes + heads

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._plane(2 * layer), self._plane(2 * layer + 1)

    def _plane(self, part: int) -> Tensor:
        rows = self._first + part * self._shape.num_kv_heads if part else self._first
        gathered = self._flat.index_select(0, rows.reshape(-1))
        return gathered.reshape(
            self._shape.num_kv_heads, self._tables.shape[0], -1, self._shape.head_dim
        )


class _Axes(_TokenMajor):
    """Blocks of all layers at once, from a view [blocks, block_size, layers, 2, heads, dim]."""

    def __init__(self, shape: StepShape, pool: Tensor, block_tables: Tensor) -> None:
        super().__init__(shape, pool, block_tables)
        view = pool.reshape(
            -1, shape.block_size, shape.num_layers, 2, shape.num_kv_heads, shape.head_dim
        )
        self._blocks = view.index_select(0, block_tables.reshape(-1))

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        pair = self._blocks.select(2, layer)
        return self._part(pair.select(2, 0)), self._part(pair.select(2, 1))

    def _part(self, part: Tensor) -> Tensor:
        heads = part.reshape(
            self._tables.shape[0], -1, self._shape.num_kv_heads, self._shape.head_dim
        )
        return heads.permute(2, 0, 1, 3)
