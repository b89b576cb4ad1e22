"""PagedRunner: one sequence's paged cache in host memory, and steps of the graph over it.

Owns the layout of one step's inputs for the parity gate: scrambled blocks, padding rows and
padding tokens. The pool itself is `host_pool.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from export.host_pool import Floats, host_pool
from export.step_shape import StepShape
from omruntime.buckets import Bucket

_SEED = 7


@dataclass(frozen=True, slots=True)
class Row:
    """New tokens of one row of a step, `past_len` cached positions before them."""

    sequence: int
    token_ids: tuple[int, ...]
    past_len: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step gave for its real rows.

    Attributes:
        logits: [rows, vocabulary].
        new_kv: of each row, [layers, 2, num_kv_heads, its tokens, head_dim].
    """

    logits: Floats
    new_kv: tuple[Floats, ...]


class StepSession(Protocol):
    """What runs a step graph: ONNX Runtime's session, or a stand-in."""

    def run(
        self, output_names: list[str], inputs: dict[str, NDArray[np.generic]]
    ) -> Sequence[NDArray[np.floating]]:
        """The outputs asked for, in that order."""


class PagedRunner:
    """Steps over several sequences, each with its own scrambled blocks."""

    def __init__(
        self,
        session: StepSession,
        shape: StepShape,
        lengths: Sequence[int],
    ) -> None:
        self._session = session
        self._shape = shape
        counts = [-(-length // shape.block_size) for length in lengths]
        rng = np.random.default_rng(_SEED)
        # Block 0 is the null block.
        scrambled = 1 + rng.permutation(sum(counts))
        self._tables = np.split(scrambled, np.cumsum(counts)[:-1])
        self._pool = host_pool(shape, 1 + sum(counts))

    def run(self, bucket: Bucket, rows: Sequence[Row], *, append: bool) -> StepResult:
        """Run one step in a bucket's shape; the rows beyond `rows` are padding.

        Args:
            append: Whether to write the new keys and values into the pools.
        """
        logits, new_kv = self._session.run(
            ["logits", "new_kv"], self._inputs(bucket, rows) | self._pool.inputs()
        )
        split = self._pool.split(new_kv, bucket)
        parts = tuple(split[:, :, :, i, : len(row.token_ids)] for i, row in enumerate(rows))
        if append:
            for row, part in zip(rows, parts, strict=True):
                self.fill(row, part)
        return StepResult(logits[: len(rows)], parts)

    def _inputs(self, bucket: Bucket, rows: Sequence[Row]) -> dict[str, NDArray[np.generic]]:
        input_ids = np.zeros((bucket.batch, bucket.tokens), np.int32)
        positions = np.zeros((bucket.batch, bucket.tokens), np.int32)
        block_tables = np.zeros((bucket.batch, bucket.past_blocks), np.int32)
        past_lens = np.zeros(bucket.batch, np.int32)
        last_index = np.zeros(bucket.batch, np.int32)
        for i, row in enumerate(rows):
            count = len(row.token_ids)
            input_ids[i, :count] = row.token_ids
            positions[i] = row.past_len + np.minimum(np.arange(bucket.tokens), count - 1)
            used = -(-row.past_len // self._shape.block_size)
            block_tables[i, :used] = self._tables[row.sequence][:used]
            past_lens[i] = row.past_len
            last_index[i] = count - 1
        return {
            "input_ids": input_ids,
            "positions": positions,
            "block_tables": block_tables,
            "past_lens": past_lens,
            "last_index": last_index,
        }

    def fill(self, row: Row, new_kv: Floats) -> None:
        """Write the keys and values of a row's new tokens into the pools.

        Args:
            new_kv: [layers, 2, num_kv_heads, the row's tokens, head_dim].
        """
        places = row.past_len + np.arange(len(row.token_ids))
        blocks = self._tables[row.sequence][places // self._shape.block_size]
        self._pool.write(blocks, places % self._shape.block_size, new_kv)
