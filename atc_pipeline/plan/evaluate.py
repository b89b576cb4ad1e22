"""What a set of buckets costs for a traffic, under the rule by which the engine picks buckets.

Owns the measure that plans are compared by: seconds for each request, in padded buckets and, as
the ideal, in buckets that fit every step exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atc_pipeline.plan.cost import CostModel
from atc_pipeline.plan.traffic import Point, Traffic
from omruntime.buckets import Bucket, Phase


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """Expected seconds for each request in one phase.

    Attributes:
        exact_s: In buckets made to measure, for the same steps.
    """

    padded_s: float
    exact_s: float

    @property
    def waste(self) -> float:
        """The share of the time that goes into padding, 0 to 1."""
        return 1.0 - self.exact_s / self.padded_s if self.padded_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class TrafficCost:
    """Both phases."""

    prefill: PhaseCost
    decode: PhaseCost

    @property
    def both(self) -> PhaseCost:
        """Their sum."""
        return PhaseCost(
            self.prefill.padded_s + self.decode.padded_s,
            self.prefill.exact_s + self.decode.exact_s,
        )


def evaluate(buckets: Sequence[Bucket], traffic: Traffic, model: CostModel) -> TrafficCost:
    """The cost of a table that covers the traffic, see `BucketTable.require_cover`."""
    chunks = longest_chunks(buckets, traffic.max_past_blocks)
    prefill = traffic.prefill_points(chunks)
    return TrafficCost(
        prefill=_phase_cost(_of(buckets, Phase.PREFILL), prefill, model),
        decode=_phase_cost(_of(buckets, Phase.DECODE), traffic.decode_points, model),
    )


def longest_chunks(buckets: Sequence[Bucket], max_past_blocks: int) -> Mapping[int, int]:
    """By past blocks, the longest prefill chunk that a bucket takes there."""
    prefill = _of(buckets, Phase.PREFILL)
    return {
        past: max(b.tokens for b in prefill if b.past_blocks >= past)
        for past in range(1, max_past_blocks + 1)
    }


def step_shape(phase: Phase, point: Point) -> tuple[int, int, int]:
    """Rows, tokens and past blocks of a step."""
    first, past = point
    return (first, 1, past) if phase is Phase.DECODE else (1, first, past)


def bucket_shares(
    buckets: Sequence[Bucket], points: Mapping[Point, float], model: CostModel
) -> Mapping[Bucket, float]:
    """How many steps for each request each bucket of one phase takes."""
    ordered = sorted(buckets, key=model.seconds)
    shares = dict.fromkeys(buckets, 0.0)
    for point, weight in points.items():
        shares[_cheapest(ordered, point)] += weight
    return shares


def _phase_cost(
    buckets: Sequence[Bucket], points: Mapping[Point, float], model: CostModel
) -> PhaseCost:
    ordered = sorted(buckets, key=model.seconds)
    padded_s = exact_s = 0.0
    for point, weight in points.items():
        bucket = _cheapest(ordered, point)
        padded_s += weight * model.seconds(bucket)
        exact_s += weight * model.shape_seconds(*step_shape(bucket.phase, point))
    return PhaseCost(padded_s, exact_s)


def _cheapest(ordered: Sequence[Bucket], point: Point) -> Bucket:
    return next(b for b in ordered if b.covers(*step_shape(b.phase, point)))


def _of(buckets: Sequence[Bucket], phase: Phase) -> list[Bucket]:
    return [b for b in buckets if b.phase is phase]
