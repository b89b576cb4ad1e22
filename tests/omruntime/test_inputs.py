"""A step's rows in the fixed shapes of a bucket, and the slots of its tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from omruntime.buckets import Bucket, Phase
from omruntime.inputs import HostInputs, map_slots, pack_places, pack_tokens
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import Request, Sequence
from omruntime.step import RowPlan, StepPlan

BLOCK_SIZE = 4


def row(token_ids: list[int], block_table: list[int], start: int, num_tokens: int) -> RowPlan:
    sequence = Sequence.of(Request("r", tuple(token_ids), SamplingParams()), arrival=1)
    sequence.block_table = block_table
    return RowPlan(sequence, start, num_tokens, samples=True)


def pack(plan: StepPlan, inputs: HostInputs) -> HostInputs:
    pack_places(plan, inputs, BLOCK_SIZE)
    pack_tokens(plan, inputs)
    return inputs


def test_rows_and_padding_of_a_prefill_step() -> None:
    bucket = Bucket(Phase.PREFILL, 3, 4, 2)
    tokens = list(range(10, 19))
    plan = StepPlan(bucket, (row(tokens, [5, 9, 7], 6, 3), row([8, 9], [3], 0, 2)))
    inputs = pack(plan, HostInputs.zeros(bucket))
    assert inputs.input_ids.tolist() == [[16, 17, 18, 0], [8, 9, 0, 0], [0, 0, 0, 0]]
    assert inputs.positions.tolist() == [[6, 7, 8, 8], [0, 1, 1, 1], [0, 0, 0, 0]]
    assert inputs.block_tables.tolist() == [[5, 9], [0, 0], [0, 0]]
    assert inputs.past_lens.tolist() == [6, 0, 0]
    assert inputs.last_index.tolist() == [2, 1, 0]


def test_nothing_of_a_longer_row_stays_behind() -> None:
    """A shorter sequence in the row of a longer one must not see its blocks."""
    bucket = Bucket(Phase.DECODE, 2, 1, 3)
    long, short = row([1] * 12, [4, 5, 6], 11, 1), row([2], [8], 0, 1)
    inputs = pack(StepPlan(bucket, (long, long)), HostInputs.zeros(bucket))
    again = pack(StepPlan(bucket, (short,)), inputs)
    fresh = pack(StepPlan(bucket, (short,)), HostInputs.zeros(bucket))
    for name, array in again.named().items():
        np.testing.assert_array_equal(array, fresh.named()[name], err_msg=name)


def test_what_is_in_the_pool_gets_no_slot() -> None:
    """Its row reads its past like any other; also where nothing else writes."""
    written, computed = row([0] * 9, [5, 9, 7], 6, 1), row([1, 2, 3], [3], 1, 1)
    computed = replace(computed, samples=False, is_computed=True)
    for bucket in (Bucket(Phase.DECODE, 3, 1, 2), Bucket(Phase.PREFILL, 3, 2, 2)):
        inputs = pack(StepPlan(bucket, (computed, written)), HostInputs.zeros(bucket))
        assert inputs.input_ids[:, 0].tolist() == [2, 0, 0]
        assert inputs.past_lens.tolist() == [1, 6, 0]
        mapping = map_slots(StepPlan(bucket, (computed, written)), BLOCK_SIZE)
        assert mapping.rows.tolist() == [bucket.tokens]
        assert mapping.slots.tolist() == [9 * 4 + 2]
        nothing = map_slots(StepPlan(bucket, (computed, computed)), BLOCK_SIZE)
        assert (nothing.rows.size, nothing.slots.size) == (0, 0)


def test_slots_follow_the_block_table_across_block_edges() -> None:
    bucket = Bucket(Phase.PREFILL, 2, 4, 2)
    plan = StepPlan(bucket, (row([0] * 9, [5, 9, 7], 6, 3), row([0, 0], [3], 0, 2)))
    mapping = map_slots(plan, BLOCK_SIZE)
    assert mapping.rows.tolist() == [0, 1, 2, 4, 5]
    assert mapping.slots.tolist() == [9 * 4 + 2, 9 * 4 + 3, 7 * 4, 3 * 4, 3 * 4 + 1]


def test_rows_of_one_token_are_laid_out_like_any_others() -> None:
    """A bucket of two tokens takes the general way; both must agree."""
    rows = (
        row([1, 2, 3, 4, 5, 6], [7, 3], 5, 1),
        row([9], [4], 0, 1),
        row([8] * 9, [1, 2, 6], 8, 1),
    )
    single, general = Bucket(Phase.DECODE, 4, 1, 3), Bucket(Phase.PREFILL, 4, 2, 3)
    plan, other = StepPlan(single, rows), StepPlan(general, rows)
    got = pack(plan, HostInputs.zeros(single))
    wanted = pack(other, HostInputs.zeros(general))
    np.testing.assert_array_equal(got.input_ids[:, 0], wanted.input_ids[:, 0])
    np.testing.assert_array_equal(got.positions[:, 0], wanted.positions[:, 0])
    for name in ("block_tables", "past_lens", "last_index"):
        np.testing.assert_array_equal(got.named()[name], wanted.named()[name])
    mapping, general_mapping = map_slots(plan, BLOCK_SIZE), map_slots(other, BLOCK_SIZE)
    assert mapping.slots.tolist() == general_mapping.slots.tolist() == [13, 16, 24]
    assert mapping.rows.tolist() == [0, 1, 2]
    assert general_mapping.rows.tolist() == [0, 2, 4]
