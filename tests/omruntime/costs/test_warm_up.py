"""Warm-up runs everything once, and measures only what it does not know."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from omruntime.buckets import Bucket, Phase
from omruntime.costs.cost_table import CostTable
from omruntime.costs.warm_up import runs_within, warm_up

ONE, MANY = Bucket(Phase.DECODE, 1, 1, 4), Bucket(Phase.DECODE, 8, 1, 4)
CHUNK = Bucket(Phase.PREFILL, 1, 16, 4)
BUCKETS = (ONE, MANY, CHUNK)


class TimedDevice:
    """First runs cost a second more, and changes of the bucket `switch_s`."""

    def __init__(self, switch_s: float = 0.0) -> None:
        self.switch_s = switch_s
        self.runs: list[Bucket] = []

    def time_run(self, bucket: Bucket) -> float:
        seconds = {ONE: 0.1, MANY: 0.2, CHUNK: 0.5}[bucket]
        if bucket not in self.runs:
            seconds += 1.0
        if self.runs and self.runs[-1] != bucket:
            seconds += self.switch_s
        self.runs.append(bucket)
        return seconds


def run(device: TimedDevice, costs: CostTable, buckets: Sequence[Bucket] = BUCKETS) -> bool:
    return warm_up(device.time_run, buckets, costs, lambda *_: None)


def test_the_second_run_counts_as_the_first_pays_for_first_touch() -> None:
    costs, device = CostTable(BUCKETS, 16), TimedDevice()
    assert run(device, costs)
    assert dict(costs.measured) == {ONE: 0.1, MANY: 0.2, CHUNK: 0.5}
    assert costs.switch_s == 0.0


def test_a_long_run_is_not_repeated() -> None:
    """A first run of 1.5 s; the others take 1.1 and 1.2 s."""
    costs, device = CostTable(BUCKETS, 16), TimedDevice()
    assert warm_up(device.time_run, BUCKETS, costs, lambda *_: None, long_run_s=1.3)
    assert dict(costs.measured) == {ONE: 0.1, MANY: 0.2, CHUNK: 1.5}
    assert device.runs.count(CHUNK) == 1


def test_what_is_known_is_run_once_and_not_measured_again() -> None:
    costs, device = CostTable(BUCKETS, 16), TimedDevice()
    for bucket in BUCKETS:
        costs.measure(bucket, 1e-3)
    assert not run(device, costs)
    assert device.runs == list(BUCKETS)
    assert set(costs.measured.values()) == {1e-3}


def test_a_run_faster_than_what_is_known_counts() -> None:
    costs, device = CostTable(BUCKETS, 16), TimedDevice()
    for bucket in BUCKETS:
        costs.measure(bucket, 1.15)
    assert run(device, costs)
    assert dict(costs.measured) == {ONE: pytest.approx(1.1), MANY: 1.15, CHUNK: 1.15}


def test_a_switch_cost_is_measured_and_noise_is_none() -> None:
    costs = CostTable(BUCKETS, 16)
    run(TimedDevice(switch_s=0.05), costs)
    assert costs.switch_s == pytest.approx(0.05)
    costs = CostTable(BUCKETS, 16)
    run(TimedDevice(switch_s=0.001), costs)
    assert costs.switch_s == 0.0


def test_progress_is_told_before_each_bucket() -> None:
    told: list[tuple[int, int, Bucket]] = []
    device = TimedDevice()
    warm_up(device.time_run, BUCKETS, CostTable(BUCKETS, 16), lambda *step: told.append(step))
    assert told == [(i, 3, bucket) for i, bucket in enumerate(BUCKETS)]


def test_a_stop_in_progress_ends_the_warm_up() -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    device = TimedDevice()
    with pytest.raises(KeyboardInterrupt):
        warm_up(device.time_run, BUCKETS, CostTable(BUCKETS, 16), stop)
    assert not device.runs


@pytest.mark.parametrize(
    ("budget_s", "chosen"),
    [(0.0, (ONE, CHUNK)), (0.29, (ONE, CHUNK)), (0.31, BUCKETS), (100.0, BUCKETS)],
)
def test_a_short_warm_up_runs_the_cheap_and_one_of_each_phase(
    budget_s: float, chosen: tuple[Bucket, ...]
) -> None:
    costs = CostTable(BUCKETS, 16)
    run(TimedDevice(), costs)
    assert runs_within(BUCKETS, costs, budget_s) == chosen


def test_a_short_warm_up_runs_what_was_never_measured() -> None:
    costs = CostTable(BUCKETS, 16)
    assert runs_within(BUCKETS, costs, 0.0) == BUCKETS
    costs.measure(ONE, 0.1)
    costs.measure(MANY, 0.2)
    assert runs_within(BUCKETS, costs, 0.0) == (ONE, CHUNK)
