"""StepPlan -> the padded host arrays of one bucket."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omruntime.buckets import Bucket
from omruntime.step import RowPlan, StepPlan


@dataclass(frozen=True, slots=True)
class HostInputs:
    """The step graph's integer inputs in the fixed shapes of one bucket; reused every step.

    Attributes:
        input_ids, positions: int32 [batch, tokens].
        block_tables: int32 [batch, past_blocks].
        past_lens, last_index: int32 [batch].
    """

    input_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    block_tables: NDArray[np.int32]
    past_lens: NDArray[np.int32]
    last_index: NDArray[np.int32]

    @staticmethod
    def zeros(bucket: Bucket) -> HostInputs:
        """Inputs that are padding throughout."""
        return HostInputs(
            input_ids=np.zeros((bucket.batch, bucket.tokens), np.int32),
            positions=np.zeros((bucket.batch, bucket.tokens), np.int32),
            block_tables=np.zeros((bucket.batch, bucket.past_blocks), np.int32),
            past_lens=np.zeros(bucket.batch, np.int32),
            last_index=np.zeros(bucket.batch, np.int32),
        )

    def named(self) -> dict[str, NDArray[np.int32]]:
        """The arrays by their names in the graph."""
        return {
            "input_ids": self.input_ids,
            "positions": self.positions,
            "block_tables": self.block_tables,
            "past_lens": self.past_lens,
            "last_index": self.last_index,
        }


def pack_places(plan: StepPlan, inputs: HostInputs, block_size: int) -> None:
    """Lay one step out in `inputs`, overwriting all but the tokens, which need not be known yet.

    Padding tokens of a row stand at the row's last valid position. Rows past the plan's are
    padding: past length 0, every block the null block; they attend to their own token alone, so
    no softmax runs over nothing.
    """
    for array in (inputs.positions, inputs.block_tables, inputs.past_lens, inputs.last_index):
        array.fill(0)
    if plan.bucket.tokens == 1:
        _pack_single_places(plan, inputs, block_size)
        return
    for i, row in enumerate(plan.rows):
        end = row.start + row.num_tokens
        inputs.positions[i, : row.num_tokens] = np.arange(row.start, end)
        inputs.positions[i, row.num_tokens :] = end - 1
        num_past_blocks = -(-row.start // block_size)
        inputs.block_tables[i, :num_past_blocks] = row.sequence.block_table[:num_past_blocks]
        inputs.past_lens[i] = row.start
        inputs.last_index[i] = row.num_tokens - 1


def pack_tokens(plan: StepPlan, inputs: HostInputs) -> None:
    """Fill in the tokens of one step; padding is token 0."""
    inputs.input_ids.fill(0)
    if plan.bucket.tokens == 1:
        token_ids = [row.sequence.token_ids[row.start] for row in plan.rows]
        inputs.input_ids[: len(plan.rows), 0] = token_ids
        return
    for i, row in enumerate(plan.rows):
        token_ids = row.sequence.token_ids[row.start : row.start + row.num_tokens]
        inputs.input_ids[i, : row.num_tokens] = token_ids


def _pack_single_places(plan: StepPlan, inputs: HostInputs, block_size: int) -> None:
    """A step of one token a row, whose rows are laid out together."""
    num_rows = len(plan.rows)
    starts = [row.start for row in plan.rows]
    inputs.positions[:num_rows, 0] = starts
    inputs.past_lens[:num_rows] = starts
    for i, row in enumerate(plan.rows):
        num_past_blocks = -(-row.start // block_size)
        inputs.block_tables[i, :num_past_blocks] = row.sequence.block_table[:num_past_blocks]


@dataclass(frozen=True, slots=True)
class SlotMapping:
    """Where a step's new keys and values go; padding and computed rows are left out.

    Attributes:
        rows: int64 [n], indices into the batch * tokens rows of `new_kv`.
        slots: int64 [n], block_id * block_size + offset.
    """

    rows: NDArray[np.int64]
    slots: NDArray[np.int64]


def map_slots(plan: StepPlan, block_size: int) -> SlotMapping:
    """The slots of all real tokens of a step; those that are in the pool already have none."""
    writing = [(i, row) for i, row in enumerate(plan.rows) if not row.is_computed]
    if plan.bucket.tokens == 1 or not writing:
        slots_of_rows = [_slot(row, block_size) for _, row in writing]
        indices = np.array([i for i, _ in writing], np.int64)
        return SlotMapping(indices, np.array(slots_of_rows, np.int64))
    rows, slots = [], []
    for i, row in writing:
        positions = np.arange(row.start, row.start + row.num_tokens)
        first = row.start // block_size
        last = (row.start + row.num_tokens - 1) // block_size
        blocks = np.array(row.sequence.block_table[first : last + 1], np.int64)
        slots.append(blocks[positions // block_size - first] * block_size + positions % block_size)
        rows.append(i * plan.bucket.tokens + np.arange(row.num_tokens))
    return SlotMapping(np.concatenate(rows), np.concatenate(slots))


def _slot(row: RowPlan, block_size: int) -> int:
    """Where the one new token of a row goes."""
    block, offset = divmod(row.start, block_size)
    return row.sequence.block_table[block] * block_size + offset
