"""Warm-up: run every bucket before the first request, and measure what a run takes.

Owns the order of runs and what counts as a measurement. How a bucket is run on padding is
`executor.py`'s business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from omruntime.buckets import Bucket, Phase
from omruntime.costs.cost_table import CostTable

Progress = Callable[[int, int, Bucket], None]
"""Called before each bucket with its number from 0, their count, and the bucket."""

# A run that takes so long counts at once where a bucket's first run makes nothing ready: on two
# devices and 47 such buckets the first took 0.96 to 1.12 times the second in the median, and others
# on the machine moved either by more. By time these are three fifths of a start's runs, or more.
LONG_RUN_S = 0.25
# Changes between two buckets that a switch cost is the mean of.
_NUM_SWITCHES = 6
# A dearer change than this share of a run is a property of the device; less is noise.
_LEAST_SWITCH_SHARE = 0.05


def warm_up(
    time_run: Callable[[Bucket], float],
    buckets: Sequence[Bucket],
    costs: CostTable,
    progress: Progress,
    long_run_s: float = math.inf,
) -> bool:
    """Run every bucket once, and those that the table does not know twice.

    The first run pays for memory that nobody has touched yet, so the faster one counts. A run that
    is faster than what is known counts as well: others may have used the cores back then.

    Args:
        time_run: Runs a bucket on padding and returns its seconds, the device being idle
            before and after.
        long_run_s: From so many seconds on a run is not repeated.

    Returns:
        Whether anything was measured.
    """
    num_measured = num_lowered = 0
    for number, bucket in enumerate(buckets):
        progress(number, len(buckets), bucket)
        seconds = time_run(bucket)
        if not costs.is_measured(bucket):
            again = time_run(bucket) if seconds < long_run_s else seconds
            costs.measure(bucket, min(seconds, again))
            num_measured += 1
        elif seconds < costs.measured[bucket]:
            costs.measure(bucket, seconds)
            num_lowered += 1
    if num_measured:
        costs.switch_s = _switch_seconds(time_run, buckets, costs)
    return num_measured + num_lowered > 0


def describe_run(number: int, count: int, bucket: Bucket) -> str:
    """One line for humans on a run that begins; the arguments are those of `Progress`."""
    return (
        f"warming up {number + 1}/{count}: {bucket.phase.value} batch={bucket.batch} "
        f"tokens={bucket.tokens} past_blocks={bucket.past_blocks}"
    )


def runs_within(buckets: Sequence[Bucket], costs: CostTable, budget_s: float) -> tuple[Bucket, ...]:
    """The buckets that a short warm-up runs, in the given order.

    Those that were never measured, the cheapest of each phase, and of the others as many as the
    budget holds by their measured costs, the cheapest first.
    """
    known = sorted(filter(costs.is_measured, buckets), key=costs.seconds)
    chosen = {bucket for bucket in buckets if not costs.is_measured(bucket)}
    chosen.update({bucket.phase: bucket for bucket in reversed(known)}.values())
    for bucket in known:
        budget_s -= costs.seconds(bucket)
        if budget_s >= 0:
            chosen.add(bucket)
    return tuple(bucket for bucket in buckets if bucket in chosen)


def _switch_seconds(
    time_run: Callable[[Bucket], float], buckets: Sequence[Bucket], costs: CostTable
) -> float:
    """What a run takes longer after one of another bucket, by the two cheapest decode buckets."""
    decode = [b for b in buckets if b.phase is Phase.DECODE]
    pair = sorted(decode, key=costs.seconds)[:2]
    if len(pair) < 2:
        return 0.0
    alone = 0.0
    for bucket in pair:
        time_run(bucket)
        alone += min(time_run(bucket) for _ in range(_NUM_SWITCHES // 2))
    rounds = [[time_run(b) for b in pair] for _ in range(_NUM_SWITCHES // 2)]
    alternating = sum(min(seconds) for seconds in zip(*rounds, strict=True))
    extra = (alternating - alone) / 2
    return extra if extra > _LEAST_SWITCH_SHARE * alone / 2 else 0.0
