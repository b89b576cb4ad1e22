"""What a table costs, by hand."""

from __future__ import annotations

import pytest

from atc_pipeline.plan.cost import CostModel
from atc_pipeline.plan.evaluate import bucket_shares, evaluate, longest_chunks
from atc_pipeline.plan.lengths import RequestLength
from atc_pipeline.plan.traffic import Traffic
from atc_pipeline.soc import SOCS
from omruntime.buckets import Bucket, Phase
from tests.atc_pipeline.plan.plan_cases import SMALL

MODEL = CostModel(SOCS["Ascend310P3"], SMALL, 16)
SHORT, LONG = Bucket(Phase.PREFILL, 1, 32, 1), Bucket(Phase.PREFILL, 1, 16, 4)
NARROW, WIDE = Bucket(Phase.DECODE, 1, 1, 1), Bucket(Phase.DECODE, 1, 1, 4)
TABLE = (SHORT, LONG, NARROW, WIDE)


def test_chunks_are_as_long_as_a_bucket_takes_at_that_past() -> None:
    assert longest_chunks(TABLE, 4) == {1: 32, 2: 16, 3: 16, 4: 16}


def test_costs_by_hand() -> None:
    """40 prompt tokens: 32, then 8 behind two blocks; two decode steps at 40 and 41 positions."""
    traffic = Traffic((RequestLength(40, 3),), (1.0,), 1, 65, 16)
    cost = evaluate(TABLE, traffic, MODEL)
    assert cost.prefill.padded_s == pytest.approx(MODEL.seconds(SHORT) + MODEL.seconds(LONG))
    exact = MODEL.shape_seconds(1, 32, 1) + MODEL.shape_seconds(1, 8, 2)
    assert cost.prefill.exact_s == pytest.approx(exact)
    assert cost.decode.padded_s == pytest.approx(2 * MODEL.seconds(WIDE))
    assert cost.decode.exact_s == pytest.approx(2 * MODEL.shape_seconds(1, 1, 3))
    assert cost.both.padded_s == pytest.approx(cost.prefill.padded_s + cost.decode.padded_s)
    assert cost.prefill.waste == pytest.approx(1 - exact / cost.prefill.padded_s)


def test_the_cheapest_bucket_that_covers_is_taken() -> None:
    """As the engine picks, whatever the order of the table."""
    traffic = Traffic((RequestLength(8, 2),), (1.0,), 1, 65, 16)
    for table in (TABLE, TABLE[::-1]):
        cost = evaluate(table, traffic, MODEL)
        assert cost.prefill.padded_s == pytest.approx(min(map(MODEL.seconds, (SHORT, LONG))))
        assert cost.decode.padded_s == pytest.approx(MODEL.seconds(NARROW))


def test_shares_name_buckets_that_are_never_used() -> None:
    shares = bucket_shares((NARROW, WIDE), {(1, 3): 2.0}, MODEL)
    assert shares == {NARROW: 0.0, WIDE: 2.0}
