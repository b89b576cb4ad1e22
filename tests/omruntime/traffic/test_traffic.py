"""Arrivals, lengths and quantiles: their ranges, their means, and that seeds repeat them."""

from __future__ import annotations

import random
import statistics
from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omruntime.traffic.arrivals import arrival_times
from omruntime.traffic.lengths import Fixed, Lengths, Lognormal, Uniform
from omruntime.traffic.quantiles import quantile


def arrivals(rate: float, burstiness: float, seed: int, count: int) -> list[float]:
    return list(islice(arrival_times(random.Random(seed), rate, burstiness), count))


@settings(max_examples=30)
@given(st.floats(0.01, 1e4), st.floats(0.05, 50), st.integers())
def test_arrivals_only_go_on_and_repeat_by_seed(rate: float, burstiness: float, seed: int) -> None:
    times = arrivals(rate, burstiness, seed, 20)
    assert times == sorted(times)
    assert times[0] >= 0
    assert times == arrivals(rate, burstiness, seed, 20)
    assert times != arrivals(rate, burstiness, seed + 1, 20)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_of_the_rate_and_the_spread_of_the_burstiness(
    burstiness: float,
) -> None:
    gaps = [b - a for a, b in pairwise(arrivals(5.0, burstiness, 3, 8000))]
    assert statistics.fmean(gaps) == pytest.approx(1 / 5.0, rel=0.1)
    spread = statistics.stdev(gaps) / statistics.fmean(gaps)
    assert spread == pytest.approx(burstiness**-0.5, rel=0.1)


def test_an_infinite_rate_has_all_arrive_at_the_start() -> None:
    assert arrivals(float("inf"), 1.0, 0, 3) == [0.0, 0.0, 0.0]


@settings(max_examples=30)
@given(
    st.one_of(
        st.builds(Fixed, st.integers(1, 999)),
        st.integers(1, 999).flatmap(lambda n: st.builds(Uniform, st.just(n), st.integers(n, 1999))),
        st.builds(Lognormal, st.integers(1, 999), st.floats(0.1, 5), st.integers(1, 5000)),
    ),
    st.integers(),
)
def test_lengths_lie_between_one_and_the_longest(lengths: Lengths, seed: int) -> None:
    source = random.Random(seed)
    drawn = [lengths.draw(source) for _ in range(20)]
    assert all(1 <= length <= (lengths.longest or 0) for length in drawn)


def test_lognormal_lengths_have_the_median() -> None:
    source, lengths = random.Random(0), Lognormal(100, 1.0)
    assert lengths.longest is None
    assert statistics.median(lengths.draw(source) for _ in range(5000)) == pytest.approx(
        100, rel=0.1
    )


@settings(max_examples=30)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1))
def test_a_quantile_is_a_value_with_its_share_below(values: list[float], share: float) -> None:
    ascending = sorted(values)
    found = quantile(ascending, share)
    assert found in values
    num_up_to = sum(value <= found for value in values)
    assert num_up_to >= share * len(values)
    assert sum(value < found for value in values) <= share * len(values)


def test_quantiles_at_the_ends() -> None:
    assert quantile([], 0.5) == 0.0
    hundred = [float(n) for n in range(1, 101)]
    assert [quantile(hundred, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 51, 100, 100]
