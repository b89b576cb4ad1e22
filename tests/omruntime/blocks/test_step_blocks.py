"""Rows get blocks that they alone write to, and exactly as many as were announced."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omruntime.blocks.block_pool import BlockPool
from omruntime.blocks.step_blocks import StepBlocks
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.row_choice import make_row
from omruntime.sequence import Request, Sequence
from omruntime.step import RowPlan

BLOCK_SIZE = 4


def row_of(num_computed: int, num_tokens: int, block_table: list[int]) -> RowPlan:
    prompt = tuple(range(num_computed + num_tokens))
    sequence = Sequence.of(Request("r", prompt, SamplingParams()), 0)
    sequence.num_computed_tokens = num_computed
    sequence.block_table = block_table
    return make_row(sequence, num_tokens)


def test_new_block_is_taken_only_when_the_last_one_is_full() -> None:
    pool = BlockPool(9)
    blocks = StepBlocks(pool, None, BLOCK_SIZE)
    table = pool.try_allocate(1) or []
    assert blocks.num_wanted([row_of(3, 1, table)]) == 0
    assert blocks.num_wanted([row_of(4, 1, table)]) == 1
    assert blocks.num_wanted([row_of(3, 6, table)]) == 2
    assert blocks.num_wanted([row_of(0, 4, []), row_of(0, 5, [])]) == 3


def test_all_holders_of_a_tail_but_the_last_copy_it() -> None:
    pool = BlockPool(9)
    blocks = StepBlocks(pool, None, BLOCK_SIZE)
    [tail] = pool.try_allocate(1) or []
    pool.retain([tail, tail])
    rows = [row_of(2, 1, [tail]) for _ in range(3)]
    assert blocks.num_wanted(rows) == 2
    copies = blocks.provide(rows)
    assert [source for source, _ in copies] == [tail, tail]
    assert rows[2].sequence.block_table == [tail]
    assert len({row.sequence.block_table[0] for row in rows}) == 3


def test_holder_outside_of_the_step_keeps_the_tail() -> None:
    pool = BlockPool(9)
    blocks = StepBlocks(pool, None, BLOCK_SIZE)
    [tail] = pool.try_allocate(1) or []
    pool.retain([tail])
    [(source, target)] = blocks.provide([row_of(2, 1, [tail])])
    assert source == tail
    assert (pool.reference_count(tail), pool.reference_count(target)) == (1, 1)


@given(
    num_others=st.integers(0, 3),
    num_computed=st.integers(1, 9),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_announced_is_taken_and_written_blocks_have_one_holder(
    num_others: int, num_computed: int, lengths: list[int]
) -> None:
    pool = BlockPool(40)
    blocks = StepBlocks(pool, None, BLOCK_SIZE)
    shared = pool.try_allocate(-(-num_computed // BLOCK_SIZE)) or []
    rows = [row_of(num_computed, n, shared.copy()) for n in lengths]
    for _ in range(len(rows) + num_others - 1):
        pool.retain(shared)
    num_free, num_wanted = pool.num_free, blocks.num_wanted(rows)
    copies = blocks.provide(rows)
    assert num_free - pool.num_free == num_wanted
    for row in rows:
        written = row.sequence.block_table[num_computed // BLOCK_SIZE :]
        assert [pool.reference_count(b) for b in written] == [1] * len(written)
    assert {source for source, _ in copies} <= set(shared[-1:])
    pool.check()
