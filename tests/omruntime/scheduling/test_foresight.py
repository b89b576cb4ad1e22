"""When the next step is foreseen, when not, and what makes a foreseen one void."""

from __future__ import annotations

import pytest

from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.costs.cost_table import CostTable
from omruntime.limits import EngineLimits
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.scheduler import Scheduler, SchedulerOptions
from omruntime.sequence import Request
from omruntime.step import SampledToken, SamplingFailure, StepPlan
from tests.omruntime.scheduler_bench import BLOCK_SIZE, EOS, Bench, rows_of


def decoding(*names: str, **options: int) -> Bench:
    """A bench whose sequences have all had a token."""
    bench = Bench(**options)  # type: ignore[arg-type]
    for name in names:
        bench.add(name, 5)
    bench.run_until(lambda: all(s.num_output_tokens for s in bench.scheduler.sequences()))
    return bench


def foreseen(bench: Bench) -> tuple[StepPlan, StepPlan]:
    """A step in flight, and the next one."""
    plan = bench.plan()
    ahead = bench.scheduler.foresee(plan)
    assert ahead is not None
    return plan, ahead


def test_the_next_step_is_the_foreseen_one_itself_with_blocks_and_tokens() -> None:
    bench = decoding("a", "b")
    for _ in range(3 * BLOCK_SIZE):
        plan, ahead = foreseen(bench)
        assert rows_of(ahead) == [(name, start + 1, 1) for name, start, _ in rows_of(plan)]
        bench.update(plan)
        assert bench.plan() is ahead
        assert all(row.start < len(row.sequence.token_ids) for row in ahead.rows)
        bench.update(ahead)


def test_a_prompts_last_chunk_lets_its_first_decode_step_be_foreseen() -> None:
    bench = Bench()
    bench.add("a", 21)
    plan = bench.plan()
    assert bench.scheduler.foresee(plan) is None
    bench.update(plan)
    plan, ahead = foreseen(bench)
    assert plan.bucket.phase is Phase.PREFILL
    assert rows_of(ahead) == [("a", 21, 1)]


def test_nothing_is_foreseen_while_a_prompt_or_a_score_is_under_way() -> None:
    bench = decoding("a")
    bench.add("b", 30)
    assert bench.scheduler.foresee(bench.plan()) is None
    scored = Bench()
    params = SamplingParams(max_new_tokens=4, prompt_logprobs=0)
    scored.scheduler.add(Request("a", tuple(range(5)), params))
    plan = scored.step()
    while not plan.rows[-1].samples:
        plan = scored.plan()
        assert scored.scheduler.foresee(plan) is None
        scored.update(plan)
    assert plan.rows[-1].is_computed


def test_nothing_is_foreseen_where_sequences_decode_in_turn() -> None:
    bench = decoding("a", "b", "c", decode_rows=2)
    assert bench.scheduler.foresee(bench.plan()) is None


def test_nothing_is_foreseen_that_needs_a_preemption() -> None:
    """Two sequences are about to begin a fourth block each, and all six blocks are theirs."""
    bench = decoding("a", "b", num_blocks=7)
    plan = bench.plan()
    while plan.rows[0].start < 3 * BLOCK_SIZE - 1:
        assert bench.scheduler.foresee(plan) is not None
        bench.update(plan)
        plan = bench.plan()
    assert bench.pool.num_free == 0
    assert bench.scheduler.foresee(plan) is None


@pytest.mark.parametrize("change", ["abort", "abort in flight", "end", "failure", "arrival"])
def test_a_change_of_who_runs_voids_what_was_foreseen(change: str) -> None:
    bench = decoding("a", "b")
    plan, ahead = foreseen(bench)
    if change == "abort in flight":
        bench.scheduler.abort("b")
    tokens = {"end": SampledToken(EOS), "failure": SamplingFailure("not a number")}
    bench.scheduler.update(plan, [SampledToken(50), tokens.get(change, SampledToken(50))])
    if change == "abort":
        bench.scheduler.abort("b")
    if change == "arrival":
        bench.add("c", 1)
    plan = bench.plan()
    assert plan is not ahead
    names = [name for name, _, _ in rows_of(plan)]
    assert names == (["a", "b", "c"] if change == "arrival" else ["a"])


def test_a_request_that_must_wait_voids_nothing() -> None:
    bench = decoding("a", "b", max_num_seqs=2)
    plan, ahead = foreseen(bench)
    bench.add("c", 5)
    bench.update(plan)
    assert bench.plan() is ahead


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_a_batch_that_shrank_leaves_its_bucket_as_late_as_ever(looks_ahead: bool) -> None:
    """Staying costs 1 s a step, the change 3.5 s."""
    longest, costs = 16, {(Phase.DECODE, 1, 1): 1.0, (Phase.DECODE, 4, 1): 2.0}
    bench = Bench()
    buckets = {Bucket(*shape, longest): s for shape, s in costs.items()}
    table = BucketTable([*buckets, Bucket(Phase.PREFILL, 1, 16, longest)], BLOCK_SIZE)
    measured = CostTable(table, BLOCK_SIZE)
    for bucket, seconds in buckets.items():
        measured.measure(bucket, seconds)
    measured.switch_s = 3.5
    limits = EngineLimits(33, 4, 64, 16, 64, 10_000)
    options = SchedulerOptions(measured)
    bench.scheduler = Scheduler(limits, table, bench.pool, bench.cache, [EOS], options)
    for name in ("a", "b"):
        bench.add(name, 1)
    bench.run_until(lambda: all(s.num_output_tokens for s in bench.scheduler.sequences()))
    bench.scheduler.abort("b")
    rows = []
    for _ in range(6):
        plan = bench.plan()
        rows.append(plan.bucket.batch)
        # As often as one likes: a look alone changes nothing.
        for _ in range(3 if looks_ahead else 0):
            assert bench.scheduler.foresee(plan) is not None
        bench.update(plan)
    assert rows == [4, 4, 4, 1, 1, 1]
