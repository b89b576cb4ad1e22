"""Specs name what is wrong with them; default grids cover what they promise, and stay small."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.bucket_grids import default_buckets, require_cover
from export.parity_cases import bucket_steps, chunked_prefill, edge_positions, steps_to_prove
from export.profiles import ASCEND310B, ASCEND310P, CPU, Profile
from export.spec import ExportSpec
from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.errors import ConfigError

LIMITS = st.tuples(st.integers(2, 9000), st.integers(1, 100), st.sampled_from((1, 5, 16, 64)))


@pytest.mark.parametrize(
    ("profile", "most"), [(CPU, 150), (ASCEND310P, 16), (ASCEND310B, 16)], ids=str
)
@given(LIMITS)
def test_the_default_grid_covers_and_is_bounded(
    profile: Profile, most: int, limits: tuple[int, int, int]
) -> None:
    max_model_len, max_num_seqs, block_size = limits
    buckets = default_buckets(profile, max_model_len, max_num_seqs, block_size)
    require_cover(buckets, block_size, max_num_seqs, max_model_len)
    assert len(set(buckets)) == len(buckets) <= most


def test_the_grid_of_the_defaults() -> None:
    buckets = default_buckets(CPU, 2048, 32, 16)
    assert sum(b.phase is Phase.DECODE for b in buckets) == 36
    assert sum(b.phase is Phase.PREFILL for b in buckets) == 34


def test_few_gears_are_compiled_for_an_ascend_device() -> None:
    """ATC takes 2 to 100 gears and recommends few; M is at least 1."""
    buckets = default_buckets(ASCEND310P, 2048, 32, 128)
    decode = [(b.batch, b.past_blocks) for b in buckets if b.phase is Phase.DECODE]
    assert decode == [(b, m) for b in (1, 4, 16, 32) for m in (4, 16)]
    prefill = [(b.tokens, b.past_blocks) for b in buckets if b.phase is Phase.PREFILL]
    assert prefill == [(q, m) for m in (1, 16) for q in (32, 128, 512)]
    shortest = default_buckets(ASCEND310P, 2, 1, 128)
    assert shortest == (Bucket(Phase.DECODE, 1, 1, 1), Bucket(Phase.PREFILL, 1, 2, 1))


def test_a_grid_that_does_not_cover_is_refused() -> None:
    with pytest.raises(ConfigError, match="no decode bucket takes 8 row"):
        require_cover(default_buckets(CPU, 64, 4, 16), 16, 8, 64)


def test_a_bucket_without_past_blocks_is_refused() -> None:
    """ONNX Runtime failed on it in the parity gate."""
    grid = (*default_buckets(CPU, 64, 4, 16), Bucket(Phase.PREFILL, 2, 8, 0))
    with pytest.raises(ConfigError, match="prefill bucket of 2x8 has past_blocks 0, wanted at lea"):
        require_cover(grid, 16, 4, 64)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_size", 0),
        ("num_blocks", 1),
        ("max_num_seqs", 0),
        ("max_model_len", 1),
        ("num_threads", -1),
    ],
)
def test_a_value_out_of_range_is_named(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{field} is {value}"):
        ExportSpec("x", **{field: value})


def test_a_fixed_pool_is_refused_where_the_pool_is_free() -> None:
    with pytest.raises(ConfigError, match="num_blocks is 9, but the pool of target cpu"):
        ExportSpec("x", num_blocks=9)
    assert ExportSpec("x", target="Ascend310P3", num_blocks=9).num_blocks == 9


def test_the_profile_gives_the_block_size() -> None:
    assert ExportSpec("x").tokens_per_block == 16
    assert ExportSpec("x", target="Ascend310P3").tokens_per_block == 128
    assert ExportSpec("x", target="Ascend310B1").tokens_per_block == 64
    assert ExportSpec("x", target="Ascend310B1", block_size=16).tokens_per_block == 16


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="target is 'Ascend910'"):
        ExportSpec("x", target="Ascend910")


@given(LIMITS)
def test_the_parity_cases_reach_every_edge(limits: tuple[int, int, int]) -> None:
    """Each decode bucket runs, contexts lie on both sides of its edge, all rows fit."""
    max_model_len, max_num_seqs, block_size = limits
    buckets = default_buckets(CPU, max_model_len, max_num_seqs, block_size)
    token_ids = tuple(range(max_model_len))
    edges = edge_positions(buckets, block_size, max_model_len)
    for bucket in buckets:
        edge = bucket.past_blocks * block_size
        assert {edge - 1, edge, edge + 1}.intersection(token_ids) <= set(edges)
    steps = list(bucket_steps(token_ids, edges, steps_to_prove(buckets), block_size))
    assert {b for b in buckets if b.phase is Phase.DECODE} <= {step.bucket for step in steps}
    for step in steps:
        assert len(step.rows) <= step.bucket.batch
        for row in step.rows:
            assert row.past_len <= step.bucket.past_blocks * block_size
            assert 1 <= len(row.token_ids) <= step.bucket.tokens
            assert row.token_ids[-1] in edges


@given(LIMITS)
def test_chunks_join_to_the_whole_sequence(limits: tuple[int, int, int]) -> None:
    max_model_len, max_num_seqs, block_size = limits
    table = BucketTable(default_buckets(CPU, max_model_len, max_num_seqs, block_size), block_size)
    token_ids = tuple(range(min(max_model_len, 700)))
    rows = [step.rows[0] for step in chunked_prefill(token_ids, table)]
    assert tuple(token for row in rows for token in row.token_ids) == token_ids
    assert [row.past_len for row in rows] == [row.token_ids[0] for row in rows]


def test_chunks_follow_a_grid_with_long_ones_over_short_pasts_only() -> None:
    """A planned grid may have no bucket of one row, and no long chunk over a long past."""
    grid = (Bucket(Phase.PREFILL, 2, 64, 1), Bucket(Phase.PREFILL, 2, 4, 8))
    steps = list(chunked_prefill(tuple(range(100)), BucketTable(grid, 16)))
    assert [i for step in steps for i in step.rows[0].token_ids] == list(range(100))
    assert {len(step.rows[0].token_ids) for step in steps} == {1, 3, 4, 64}
