"""Blocks are handed out once, come back in order, and the null block never leaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omruntime.blocks.block_pool import BlockPool, BlockState, Retention
from omruntime.errors import ConfigError


def test_every_block_but_the_null_block_is_handed_out_once() -> None:
    pool = BlockPool(5)
    assert pool.try_allocate(4) == [1, 2, 3, 4]
    assert (pool.num_free, pool.num_referenced, pool.num_usable) == (0, 4, 4)
    pool.check()


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(4)
    pool.try_allocate(2)
    assert pool.try_allocate(2) is None
    assert pool.num_free == 1
    assert pool.try_allocate(0) == []
    pool.check()


def test_least_recently_released_block_is_handed_out_first() -> None:
    pool = BlockPool(4)
    one, two, three = pool.try_allocate(3) or []
    pool.release([two])
    pool.release([three])
    pool.release([one])
    assert pool.try_allocate(3) == [two, three, one]


def test_tail_of_a_table_is_handed_out_before_its_head() -> None:
    pool = BlockPool(4)
    table = pool.try_allocate(3) or []
    pool.release(table)
    assert pool.try_allocate(3) == table[::-1]


def test_retained_block_needs_as_many_releases() -> None:
    pool = BlockPool(3)
    [block] = pool.try_allocate(1) or []
    pool.retain([block])
    pool.release([block])
    assert pool.reference_count(block) == 1
    pool.release([block])
    assert pool.reference_count(block) == 0
    pool.check()


def test_states_tell_who_holds_a_block_and_what_a_free_one_is_good_for() -> None:
    pool = BlockPool(7)
    one, _, three, four = pool.try_allocate(4) or []
    pool.retain([one])
    for block, retention in ((one, Retention.KEPT), (three, Retention.CACHED)):
        pool.set_retention(block, retention)
    pool.set_retention(four, Retention.KEPT)
    pool.release([three, four])
    wanted = ["SHARED", "HELD", "CACHED", "KEPT", "EMPTY", "EMPTY"]
    assert [BlockState(state).name for state in pool.states(99)] == wanted
    assert len(pool.states(2)) == 2
    assert (pool.num_free, pool.num_free_cached) == (4, 2)


def test_free_block_can_be_retained_from_the_middle_of_the_free_list() -> None:
    pool = BlockPool(4)
    pool.retain([2])
    assert pool.try_allocate(2) == [1, 3]
    assert pool.try_allocate(1) is None
    pool.check()


def test_reuse_is_told_for_allocated_blocks_only() -> None:
    pool = BlockPool(4)
    reused: list[int] = []
    pool.on_reuse(reused.append)
    pool.retain([3])
    pool.try_allocate(2)
    pool.try_allocate(1)  # refused
    assert reused == [1, 2]


@pytest.mark.parametrize("block_id", [0, 4, -1])
def test_null_block_and_unknown_ones_cannot_be_held(block_id: int) -> None:
    with pytest.raises(AssertionError, match="cannot be held"):
        BlockPool(4).retain([block_id])


def test_releasing_twice_is_noticed() -> None:
    pool = BlockPool(3)
    pool.release(pool.try_allocate(1) or [])
    with pytest.raises(AssertionError, match="more often than held"):
        pool.release([1])


def test_pool_without_usable_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_blocks is 1, wanted at least 2"):
        BlockPool(1)


@given(st.lists(st.tuples(st.sampled_from(["take", "retain", "release"]), st.integers(0, 5))))
def test_counts_follow_a_naive_model(actions: list[tuple[str, int]]) -> None:
    pool, held = BlockPool(6), dict.fromkeys(range(1, 6), 0)
    for action, number in actions:
        if action == "take":
            taken = pool.try_allocate(number)
            assert (taken is None) == (number > sum(c == 0 for c in held.values()))
            for block_id in taken or []:
                assert held[block_id] == 0
                held[block_id] = 1
        elif number > 0 and action == "retain":
            pool.retain([number])
            held[number] += 1
        elif number > 0 and held[number]:
            pool.release([number])
            held[number] -= 1
        pool.check()
        assert [pool.reference_count(b) for b in held] == list(held.values())
