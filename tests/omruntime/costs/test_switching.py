"""A change of bucket waits until it pays, and without a price it happens at once."""

from __future__ import annotations

from omruntime.buckets import Bucket, Phase
from omruntime.costs.cost_table import CostTable
from omruntime.costs.switching import Switching

SMALL, LARGE = Bucket(Phase.DECODE, 4, 1, 4), Bucket(Phase.DECODE, 8, 1, 4)


def make_switching(switch_s: float) -> Switching:
    costs = CostTable([SMALL, LARGE], 16)
    costs.measure(SMALL, 1.0)
    costs.measure(LARGE, 1.5)
    costs.switch_s = switch_s
    return Switching(costs)


def settle(switching: Switching, cheapest: Bucket, last_covers: bool) -> Bucket:
    choice = switching.choose(cheapest, last_covers)
    assert choice == switching.choose(cheapest, last_covers), "a choice changed something"
    switching.settle(choice)
    return choice.bucket


def test_without_a_price_the_cheapest_is_taken_at_once() -> None:
    switching = make_switching(0.0)
    assert settle(switching, LARGE, last_covers=False) == LARGE
    assert settle(switching, SMALL, last_covers=True) == SMALL


def test_a_shrunken_batch_stays_until_staying_has_cost_as_much() -> None:
    switching = make_switching(1.2)
    settle(switching, LARGE, last_covers=False)
    settled = [settle(switching, SMALL, last_covers=True) for _ in range(4)]
    assert settled == [LARGE, LARGE, SMALL, SMALL]


def test_a_batch_on_the_border_does_not_pay_at_every_crossing() -> None:
    switching = make_switching(1.2)
    buckets = [settle(switching, b, last_covers=True) for b in (LARGE, SMALL, LARGE, SMALL, LARGE)]
    assert buckets == [LARGE] * 5


def test_a_bucket_that_is_too_small_is_left_at_once() -> None:
    switching = make_switching(100.0)
    assert settle(switching, SMALL, last_covers=False) == SMALL
    assert settle(switching, LARGE, last_covers=False) == LARGE
