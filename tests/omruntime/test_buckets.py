"""The least-work bucket that covers a step is chosen, and a table that leaves gaps refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.errors import BundleError

BLOCK_SIZE = 16
PREFILL, DECODE = Phase.PREFILL, Phase.DECODE


def table(*shapes: tuple[Phase, int, int, int]) -> BucketTable:
    return BucketTable((Bucket(*shape) for shape in shapes), BLOCK_SIZE)


def test_bucket_covers_what_is_no_larger_in_any_dimension() -> None:
    bucket = Bucket(PREFILL, 2, 8, 4)
    assert bucket.covers(2, 8, 4)
    assert bucket.covers(1, 1, 0)
    assert not bucket.covers(3, 8, 4)
    assert not bucket.covers(2, 9, 4)
    assert not bucket.covers(2, 8, 5)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((PREFILL, 0, 8, 1), "batch is 0, wanted at least 1"),
        ((PREFILL, 1, 0, 1), "tokens is 0, wanted at least 1"),
        ((PREFILL, 1, 8, -1), "past_blocks is -1, wanted at least 0"),
        ((DECODE, 1, 2, 1), "tokens is 2, wanted 1 in the decode phase"),
    ],
)
def test_impossible_bucket_is_refused(shape: tuple[Phase, int, int, int], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        Bucket(*shape)


def test_work_grows_with_rows_tokens_and_past() -> None:
    works = [
        Bucket(PREFILL, *shape).padded_work(BLOCK_SIZE)
        for shape in [(1, 8, 1), (1, 8, 2), (1, 9, 2), (2, 9, 2)]
    ]
    assert works == sorted(set(works))
    assert Bucket(DECODE, 2, 1, 3).padded_work(16) == 2 * (1024 + 3 * 16 + 1)


def test_pick_keeps_phases_apart() -> None:
    buckets = table((DECODE, 4, 1, 4), (PREFILL, 1, 8, 4))
    assert buckets.pick(DECODE, 1, 2, 1) is None
    assert buckets.pick(PREFILL, 2, 8, 1) is None
    assert buckets.pick(PREFILL, 1, 1, 1) == Bucket(PREFILL, 1, 8, 4)


def test_least_work_wins_over_the_nearest_size() -> None:
    buckets = table((PREFILL, 8, 16, 1), (PREFILL, 1, 64, 1))
    assert buckets.pick(PREFILL, 1, 10, 1) == Bucket(PREFILL, 1, 64, 1)


def test_a_step_without_past_fits_every_bucket() -> None:
    assert table((PREFILL, 1, 8, 1)).pick(PREFILL, 1, 8, 0) is not None


SIZES = st.integers(1, 9)
SHAPES = st.one_of(
    st.builds(Bucket, st.just(PREFILL), SIZES, SIZES, SIZES),
    st.builds(Bucket, st.just(DECODE), SIZES, st.just(1), SIZES),
)


@given(st.lists(SHAPES), st.sampled_from(Phase), st.tuples(*[st.integers(0, 9)] * 3))
def test_pick_is_the_least_work_among_all_that_cover(
    buckets: list[Bucket], phase: Phase, step: tuple[int, int, int]
) -> None:
    works = [b.padded_work(BLOCK_SIZE) for b in buckets if b.phase is phase and b.covers(*step)]
    picked = BucketTable(buckets, BLOCK_SIZE).pick(phase, *step)
    if picked is None:
        assert works == []
    else:
        assert picked.phase is phase
        assert picked.covers(*step)
        assert picked.padded_work(BLOCK_SIZE) == min(works)


@given(st.lists(SHAPES), st.randoms())
def test_order_of_the_bundle_does_not_matter(buckets: list[Bucket], random: object) -> None:
    shuffled = buckets.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, two = BucketTable(buckets, BLOCK_SIZE), BucketTable(shuffled, BLOCK_SIZE)
    for phase in Phase:
        assert one.pick(phase, 2, 2, 2) == two.pick(phase, 2, 2, 2)


def test_largest_rows_and_chunks() -> None:
    buckets = table((DECODE, 4, 1, 8), (DECODE, 8, 1, 2), (PREFILL, 1, 64, 2), (PREFILL, 2, 16, 8))
    assert (buckets.max_batch(DECODE), buckets.max_batch(PREFILL)) == (8, 2)
    assert [buckets.max_tokens(n) for n in (0, 2, 3, 8, 9)] == [64, 64, 16, 16, 0]
    assert table().max_batch(DECODE) == 0
    assert (len(buckets), len(list(buckets))) == (4, 4)


def test_covering_table_is_taken() -> None:
    # 64 positions: the last step has 63 before it, that is 4 blocks of 16.
    table((DECODE, 4, 1, 4), (PREFILL, 1, 8, 4)).require_cover(4, 64)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(DECODE, 3, 1, 4), (PREFILL, 1, 8, 4)], r"no decode bucket takes 4 row\(s\) over 4 past"),
        ([(DECODE, 4, 1, 3), (PREFILL, 1, 8, 4)], r"no decode bucket takes 4 row\(s\) over 4 past"),
        ([(DECODE, 4, 1, 4), (PREFILL, 1, 8, 3)], r"no prefill bucket takes 1 row\(s\) over 4"),
        ([(DECODE, 4, 1, 4), (PREFILL, 1, 1, 4)], "no prefill bucket"),
        ([(DECODE, 4, 1, 4)], "no prefill bucket"),
        ([], "no decode bucket"),
    ],
)
def test_gap_is_refused_with_the_step_that_has_no_bucket(
    shapes: list[tuple[Phase, int, int, int]], message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        table(*shapes).require_cover(4, 64)


@given(st.integers(1, 4), st.integers(2, 80), st.data())
def test_every_reachable_step_has_a_bucket_once_cover_is_proved(
    max_num_seqs: int, max_model_len: int, data: st.DataObject
) -> None:
    past_blocks = max(1, -(-(max_model_len - 1) // BLOCK_SIZE))
    buckets = table((DECODE, max_num_seqs, 1, past_blocks), (PREFILL, 1, 4, past_blocks))
    buckets.require_cover(max_num_seqs, max_model_len)
    past = data.draw(st.integers(0, max_model_len - 1))
    blocks = -(-past // BLOCK_SIZE)
    assert buckets.pick(DECODE, data.draw(st.integers(1, max_num_seqs)), 1, blocks)
    assert buckets.max_tokens(blocks) >= 2
    assert buckets.pick(PREFILL, 1, buckets.max_tokens(blocks), blocks)
