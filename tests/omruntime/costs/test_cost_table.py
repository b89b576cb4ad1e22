"""Predictions follow what was measured, and no single step moves them far."""

from __future__ import annotations

import pytest

from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.costs.cost_table import (
    EWMA_SHARE,
    FASTER_SHARE,
    OUTLIER_RATIO,
    PRIOR_SECONDS_PER_WORK,
    CostTable,
)

SMALL, LARGE = Bucket(Phase.DECODE, 1, 1, 4), Bucket(Phase.DECODE, 8, 1, 4)
CHUNK = Bucket(Phase.PREFILL, 1, 16, 4)
BUCKETS = (SMALL, LARGE, CHUNK)


def make_table() -> CostTable:
    return CostTable(BUCKETS, block_size=16)


def test_prior_is_padded_work() -> None:
    costs = make_table()
    for bucket in BUCKETS:
        assert costs.seconds(bucket) == PRIOR_SECONDS_PER_WORK * bucket.padded_work(16)
        assert not costs.is_measured(bucket)
    assert not costs.is_complete


def test_unmeasured_buckets_are_scaled_by_their_phase_or_else_by_the_other() -> None:
    costs = make_table()
    costs.measure(SMALL, 0.5)
    scale = 0.5 / SMALL.padded_work(16)
    assert costs.seconds(LARGE) == pytest.approx(scale * LARGE.padded_work(16))
    assert costs.seconds(CHUNK) == pytest.approx(scale * CHUNK.padded_work(16))
    costs.measure(CHUNK, 0.01)
    assert costs.seconds(LARGE) == pytest.approx(scale * LARGE.padded_work(16))
    assert (costs.seconds(CHUNK), costs.seconds(SMALL)) == (0.01, 0.5)
    costs.measure(LARGE, 0.6)
    assert costs.is_complete


def test_live_steps_correct_slowly_and_outliers_hardly() -> None:
    costs = make_table()
    costs.measure(SMALL, 1.0)
    costs.refine(SMALL, 1.5)
    assert costs.seconds(SMALL) == pytest.approx(1.0 + EWMA_SHARE * 0.5)
    costs.measure(SMALL, 1.0)
    costs.refine(SMALL, 1000.0)
    assert costs.seconds(SMALL) == pytest.approx(1.0 + EWMA_SHARE * (OUTLIER_RATIO - 1))
    costs.measure(SMALL, 1.0)
    costs.refine(SMALL, 0.0)
    assert costs.seconds(SMALL) == pytest.approx(1.0 - FASTER_SHARE * (1 - 1 / OUTLIER_RATIO))


def test_a_lasting_change_is_followed() -> None:
    costs = make_table()
    costs.measure(SMALL, 1.0)
    for _ in range(100):
        costs.refine(SMALL, 10.0)
    assert costs.seconds(SMALL) == pytest.approx(10.0, rel=0.01)


@pytest.mark.parametrize(("true_s", "most_tries"), [(0.02, None), (0.15, 10)])
def test_an_old_estimate_is_tried_again(true_s: float, most_tries: int | None) -> None:
    """One that is wrong by now is corrected; one that is right costs a dear step now and then."""
    table, costs = BucketTable(BUCKETS, 16), make_table()
    for bucket, seconds in ((SMALL, 0.15), (LARGE, 0.1), (CHUNK, 1.0)):
        costs.measure(bucket, seconds)
    picked = []
    for _ in range(1000):
        bucket = table.pick(Phase.DECODE, 1, 1, 1, costs.seconds)
        costs.refine(bucket, true_s if bucket == SMALL else 0.1)
        picked.append(bucket)
    if most_tries is None:
        assert picked[-700:] == [SMALL] * 700
        assert costs.seconds(SMALL) == pytest.approx(true_s, rel=0.01)
    else:
        assert 1 <= picked.count(SMALL) <= most_tries


def test_what_was_never_measured_keeps_its_prior() -> None:
    """A first run pays for memory that nobody has touched yet."""
    costs = make_table()
    before = costs.seconds(LARGE)
    costs.refine(LARGE, 99.0)
    assert costs.seconds(LARGE) == before


def test_the_cheapest_covering_bucket_is_picked_whatever_its_size() -> None:
    table = BucketTable(BUCKETS, 16)
    costs = make_table()
    for bucket, seconds in ((SMALL, 0.2), (LARGE, 0.1), (CHUNK, 1.0)):
        costs.measure(bucket, seconds)
    assert table.pick(Phase.DECODE, 1, 1, 1) == SMALL
    assert table.pick(Phase.DECODE, 1, 1, 1, costs.seconds) == LARGE
    costs.measure(SMALL, 0.1)
    assert table.pick(Phase.DECODE, 1, 1, 1, costs.seconds) == SMALL, "of equal ones less work"
    assert table.pick(Phase.DECODE, 9, 1, 1, costs.seconds) is None
