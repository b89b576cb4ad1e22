"""The choice of buckets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_pipeline.plan.choose import GearLimits, choose_buckets, past_candidates
from atc_pipeline.plan.cost import CostModel
from atc_pipeline.plan.evaluate import evaluate
from atc_pipeline.plan.lengths import RequestLength
from atc_pipeline.plan.traffic import Traffic
from atc_pipeline.soc import SOCS
from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.errors import ConfigError
from tests.atc_pipeline.plan.plan_cases import LENGTHS, SMALL, traffics


def model_of(traffic: Traffic) -> CostModel:
    return CostModel(SOCS["Ascend310P3"], SMALL, traffic.block_size)


@settings(max_examples=20)
@given(traffics(), st.integers(1, 4), st.integers(2, 7), st.sampled_from([2, 48, 512]))
def test_every_step_is_covered_within_the_limits(
    traffic: Traffic, per_phase: int, together: int, longest_chunk: int
) -> None:
    limits = GearLimits(per_phase, together, longest_chunk)
    buckets = choose_buckets(traffic, model_of(traffic), limits)
    table = BucketTable(buckets, traffic.block_size)
    table.require_cover(traffic.max_num_seqs, traffic.max_model_len)
    for phase in Phase:
        assert 1 <= sum(b.phase is phase for b in buckets) <= per_phase
    assert len(buckets) == len(set(buckets)) <= together
    prefill = [b for b in buckets if b.phase is Phase.PREFILL]
    assert max(b.tokens for b in prefill) <= longest_chunk
    cost = evaluate(buckets, traffic, model_of(traffic))
    for part in (cost.prefill, cost.decode):
        assert 0 <= part.waste < 1


def test_more_gears_never_cost_more_and_waste_falls() -> None:
    traffic = Traffic(LENGTHS, (1.0, 8.0), 16, 2048, 128)
    costs = [
        evaluate(
            choose_buckets(traffic, model_of(traffic), GearLimits(n, 2 * n, 512)),
            traffic,
            model_of(traffic),
        ).both
        for n in (1, 2, 4)
    ]
    times = [cost.padded_s for cost in costs]
    assert times == sorted(times, reverse=True)
    assert costs[-1].waste < 0.35 < costs[0].waste


def test_gears_stand_where_the_traffic_is() -> None:
    """One kind of request: one bucket made to measure, and the one that covers."""
    traffic = Traffic((RequestLength(64, 30),) * 3, (0.001,), 8, 2048, 32)
    buckets = choose_buckets(traffic, model_of(traffic), GearLimits(2, 4, 512))
    assert Bucket(Phase.DECODE, 1, 1, 3) in buckets
    assert Bucket(Phase.PREFILL, 1, 64, 1) in buckets


def test_a_joint_limit_goes_to_the_phase_that_gains_more() -> None:
    """Long answers: decode gets the third gear."""
    traffic = Traffic((RequestLength(16, 500),), (4.0,), 8, 1024, 32)
    buckets = choose_buckets(traffic, model_of(traffic), GearLimits(3, 4, 512))
    assert [b.phase for b in buckets].count(Phase.DECODE) == 3


@pytest.mark.parametrize("last", [1, 2, 16, 17, 100, 1024])
def test_past_candidates_begin_with_one_block_and_end_with_the_longest(last: int) -> None:
    found = past_candidates(last)
    assert found[0] == 1
    assert found[-1] == last
    assert list(found) == sorted(set(found))
    assert len(found) <= 16


@pytest.mark.parametrize("limits", [(0, 2, 2), (1, 1, 2), (1, 2, 1)])
def test_limits_that_allow_nothing(limits: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="wanted at least"):
        GearLimits(*limits)
