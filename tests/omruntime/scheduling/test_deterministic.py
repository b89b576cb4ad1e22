"""`deterministic`: every position is computed in the same way whatever else runs."""

from __future__ import annotations

import random

import pytest

from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.limits import EngineLimits
from omruntime.scheduling.pinned import pin_buckets
from omruntime.scheduling.scheduler import SchedulerOptions
from omruntime.scheduling.turn import Scheduling, Urgency
from tests.omruntime.scheduler_bench import BLOCK_SIZE, Bench

Way = tuple[Bucket, int, int]


def ways_of(bench: Bench, name: str, num_steps: int = 400) -> dict[int, Way]:
    """For each position of a request the bucket, start and length of what computed it.

    A position that is computed again must be computed alike.
    """
    ways: dict[int, Way] = {}
    for _ in range(num_steps):
        if bench.scheduler.num_running + bench.scheduler.num_waiting == 0:
            break
        plan = bench.plan()
        for row in plan.rows:
            if row.sequence.request_id == name:
                way = (plan.bucket, row.start, row.num_tokens)
                for position in range(row.start, row.start + row.num_tokens):
                    assert ways.setdefault(position, way) == way
        bench.update(plan)
    return ways


def make_bench(**others: int | bool) -> Bench:
    return Bench(options=SchedulerOptions(deterministic=True), prefill_rows=2, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_prompt", [1, 5, 16, 17, 18, 33, 40])
@pytest.mark.parametrize("company", ["crowd", "short of blocks", "equal prompts", "preempted"])
def test_a_request_is_computed_alike_alone_and_in_company(num_prompt: int, company: str) -> None:
    alone = make_bench()
    alone.add("a", num_prompt, max_new_tokens=12)
    wanted = ways_of(alone, "a")
    assert len(wanted) == num_prompt + 11

    draw = random.Random(num_prompt)
    bench = make_bench(num_blocks=19 if company == "short of blocks" else 60, max_num_seqs=3)
    if company == "equal prompts":
        bench.add("b", num_prompt, max_new_tokens=12, first_id=1000 * (1 + ord("a")))
        for _ in range(draw.randrange(6)):
            bench.step()
    for number in range(4):
        bench.add(f"o{number}", draw.randrange(1, 40), max_new_tokens=draw.randrange(1, 12))
    bench.add("a", num_prompt, max_new_tokens=12)
    if company == "preempted":
        bench.run_until(lambda: bench.scheduler.num_waiting == 0)
        hurry = Scheduling(urgency=Urgency.HIGH)
        for number in range(3):
            bench.add(f"u{number}", 9, max_new_tokens=3, scheduling=hurry)
    ways = ways_of(bench, "a")
    # What was computed before the look, or is reused, is not among them.
    assert ways.items() <= wanted.items()
    assert max(ways) == max(wanted)


def test_without_it_the_company_shows() -> None:
    """The check above could not fail otherwise."""
    alone = Bench()
    alone.add("a", 40, max_new_tokens=12)
    together = Bench()
    together.add("b", 14, max_new_tokens=1, first_id=1000 * (1 + ord("a")))
    together.drain()
    together.add("a", 40, max_new_tokens=12)
    assert not ways_of(together, "a").items() <= ways_of(alone, "a").items()


def test_one_bucket_of_each_phase_is_left_that_covers_everything() -> None:
    shapes = [(Phase.DECODE, b, 1, m) for b in (1, 4, 8) for m in (2, 16)]
    shapes += [(Phase.PREFILL, b, q, m) for b, q in ((1, 4), (1, 16), (4, 16)) for m in (2, 16)]
    table = BucketTable((Bucket(*s) for s in shapes), BLOCK_SIZE)
    limits = EngineLimits(40, 4, 64, 12, 9, 99)
    pinned = set(pin_buckets(table, limits))
    assert pinned == {Bucket(Phase.DECODE, 4, 1, 16), Bucket(Phase.PREFILL, 1, 4, 16)}
