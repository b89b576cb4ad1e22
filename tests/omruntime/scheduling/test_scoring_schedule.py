"""Scores of a prompt take their turn like its chunks: in what would be padded, within targets."""

from __future__ import annotations

import pytest

from omruntime.blocks.block_pool import BlockPool
from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.costs.cost_table import CostTable
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.lifecycle import Lifecycle
from omruntime.scheduling.output_lengths import OutputLengths
from omruntime.scheduling.phase_policy import Targets
from omruntime.scheduling.row_choice import RowChooser, make_score_rows
from omruntime.scheduling.scheduler import SchedulerOptions
from omruntime.scheduling.turn import Scheduling, Urgency
from omruntime.scheduling.waiting_queue import WaitingQueue
from omruntime.sequence import FinishReason, Request, Sequence
from omruntime.step import SamplingFailure
from tests.omruntime.scheduler_bench import BLOCK_SIZE, GOES_ON, Bench, rows_of


def add_scored(
    bench: Bench, name: str, num_tokens: int, scheduling: Scheduling | None = None
) -> Sequence:
    """A prompt that is scored and not answered."""
    first_id = 1000 * (1 + ord(name[0]))
    params = SamplingParams(max_new_tokens=0, prompt_logprobs=0)
    prompt = tuple(range(first_id, first_id + num_tokens))
    request = Request(name, prompt, params, scheduling=scheduling or Scheduling())
    return bench.scheduler.add(request, bench.now)


def measured(decode_s: float, prefill_s: float, targets: Targets) -> SchedulerOptions:
    """Costs of the bench's buckets."""
    shapes = [(Phase.PREFILL, 1, 8), (Phase.PREFILL, 1, 16), (Phase.DECODE, 4, 1)]
    buckets = [Bucket(*shape, 64 // BLOCK_SIZE) for shape in shapes]
    costs = CostTable(BucketTable(buckets, BLOCK_SIZE), BLOCK_SIZE)
    for bucket in buckets:
        costs.measure(bucket, decode_s if bucket.phase is Phase.DECODE else prefill_s)
    return SchedulerOptions(costs, targets)


def test_a_prompt_is_computed_then_scored_from_its_beginning() -> None:
    bench = Bench()
    sequence = add_scored(bench, "a", 10)
    plans = bench.run_until(lambda: sequence.finish_reason is not None)
    assert [rows_of(plan) for plan in plans] == [
        [("a", 0, 10)],
        [("a", p, 1) for p in (0, 1, 2, 3)],
        [("a", p, 1) for p in (4, 5, 6, 7)],
        [("a", 8, 1)],
    ]
    assert [plan.bucket.phase for plan in plans] == [Phase.PREFILL] + [Phase.DECODE] * 3
    assert sequence.finish_reason is FinishReason.LENGTH
    bench.drain()


def test_scores_fill_the_rows_that_a_decode_step_would_pad() -> None:
    bench = Bench(options=measured(0.05, 0.05, Targets(ttft_s=1e9)))
    answering = bench.add("a", 4)
    bench.run_until(lambda: answering.num_output_tokens >= 2)
    scored = add_scored(bench, "b", 9)
    bench.run_until(lambda: scored.is_scoring)
    plan = bench.step()
    assert sorted(row.is_computed for row in plan.rows) == [False, True, True, True]
    assert answering.num_output_tokens > 2


def test_answers_do_not_starve_behind_a_long_prompt_that_is_scored() -> None:
    """By predicted time, no answer waits longer for a token than its target and one step."""
    bench = Bench(decode_rows=4, options=measured(0.06, 0.06, Targets(1e9, 0.1)))
    answering = [bench.add(name, 4) for name in "abcd"]
    bench.run_until(lambda: all(s.num_output_tokens >= 2 for s in answering))
    hurry = Scheduling(urgency=Urgency.HIGH, ttft_target_s=1e-9)
    bench.scheduler.abort("d")
    scored = add_scored(bench, "e", 60, hurry)
    gap_s, gaps, num_scoring = 0.0, [], 0
    while scored.finish_reason is None:
        plan = bench.step()
        gap_s += 0.06
        num_scoring += plan.rows[0].is_computed
        if any(row.sequence is answering[0] for row in plan.rows):
            gaps.append(gap_s)
            gap_s = 0.0
    assert num_scoring > 0, "a prompt that is late has steps of its own"
    assert max(gaps) <= 0.1 + 0.06


def test_a_time_budget_picks_the_number_of_rows() -> None:
    buckets = [Bucket(Phase.DECODE, rows, 1, 8) for rows in (1, 4, 16)]
    prefill = Bucket(Phase.PREFILL, 1, 8, 8)
    table = BucketTable([*buckets, prefill], BLOCK_SIZE)
    costs = CostTable(table, BLOCK_SIZE)
    costs.measure(prefill, 0.1)
    for bucket, seconds in zip(buckets, (0.01, 0.04, 0.16), strict=True):
        costs.measure(bucket, seconds)
    chooser = RowChooser(table, 8, costs)
    params = SamplingParams(max_new_tokens=0, prompt_logprobs=0)
    sequence = Sequence.of(Request("r", tuple(range(30)), params), 0)
    sequence.num_computed_tokens = 30
    budgets = (float("inf"), 0.2, 0.1, 0.03, 0.001)
    assert [len(chooser.score(sequence, s)) for s in budgets] == [16, 16, 4, 1, 1]
    sequence.num_scored = 26
    assert [row.start for row in chooser.score(sequence)] == [26], "three would pay for four"
    costs.measure(buckets[0], 0.04)  # a row alone is dear now
    assert len(chooser.score(sequence, 0.001)) == 3
    assert [row.start for row in chooser.score(sequence)] == [26, 27, 28]
    sequence.num_scored = 0
    costs.measure(buckets[2], 0.3)  # sixteen at once are more than four times four
    assert len(chooser.score(sequence)) == 4


def test_rows_share_a_bucket_that_reaches_over_their_past() -> None:
    shapes = [(Phase.DECODE, 4, 1, 2), (Phase.DECODE, 2, 1, 8), (Phase.PREFILL, 1, 8, 8)]
    table = BucketTable((Bucket(*shape) for shape in shapes), BLOCK_SIZE)
    chooser = RowChooser(table, 8)
    params = SamplingParams(max_new_tokens=0, prompt_logprobs=0)
    sequence = Sequence.of(Request("r", tuple(range(30)), params), 0)
    sequence.num_computed_tokens = 30
    assert [row.start for row in chooser.score(sequence)] == [0, 1, 2, 3]
    sequence.num_scored = 8
    assert [row.start for row in chooser.score(sequence)] == [8, 9]
    riders = chooser.riders(Bucket(Phase.DECODE, 4, 1, 2), 1, [sequence])
    assert [row.start for row in riders] == [8], "the others' past is longer than the bucket's"


def test_after_a_preemption_it_goes_on_where_it_was() -> None:
    bench = Bench(num_blocks=9)
    scored = add_scored(bench, "b", 20)
    bench.run_until(lambda: scored.num_scored >= 8)
    urgent = bench.add("a", 20, 2, scheduling=Scheduling(urgency=Urgency.HIGH))
    bench.run_until(lambda: urgent.finish_reason is not None)
    assert scored.num_preemptions == 1
    plans = bench.run_until(lambda: scored.finish_reason is not None)
    starts = [row.start for plan in plans for row in plan.rows if row.is_computed]
    assert starts == list(range(8, 19))
    bench.drain()


def test_one_bad_position_ends_its_request_alone() -> None:
    bench = Bench()
    other, scored = bench.add("b", 4), add_scored(bench, "a", 12)
    bench.run_until(lambda: scored.is_scoring and other.num_output_tokens > 0)
    plan = bench.plan()
    bad = next(i for i, row in enumerate(plan.rows) if row.is_computed)
    results = [GOES_ON if row.samples else None for row in plan.rows]
    finished = bench.scheduler.update(
        plan, [SamplingFailure("NaN") if i == bad else r for i, r in enumerate(results)]
    )
    assert finished == [scored]
    assert scored.finish_reason is FinishReason.ERROR
    bench.run_until(lambda: other.num_output_tokens > 3)


@pytest.mark.parametrize("when", ["waiting", "prefill", "scoring"])
def test_a_deadline_ends_it_wherever_it_is(when: str) -> None:
    """BL-43"""
    bench = Bench(max_num_seqs=1)
    blocker = bench.add("b", 4) if when == "waiting" else None
    scored = add_scored(bench, "a", 40, Scheduling(deadline=5.0))
    if when == "waiting":
        bench.step()
    else:
        is_there = {"prefill": lambda: scored.num_computed_tokens > 0}
        bench.run_until(is_there.get(when, lambda: scored.num_scored > 0))
    assert bench.scheduler.expire(5.0) == [scored]
    assert scored.finish_reason is FinishReason.ABORT
    assert "deadline" in scored.finish_detail
    if blocker is not None:
        bench.scheduler.abort("b")
    bench.drain()


def test_rows_of_a_prompt_without_a_wish_do_not_exist() -> None:
    sequence = Sequence.of(Request("r", (1, 2, 3), SamplingParams()), 0)
    sequence.num_computed_tokens = 3
    assert make_score_rows(sequence, 9) == []
    assert not sequence.is_scoring


def test_scoring_counts_as_service_of_its_tenant() -> None:
    bench = Bench(max_num_seqs=1)
    for name in ("a", "b"):
        add_scored(bench, name, 40, Scheduling(tenant="scores"))
        bench.add(name.upper(), 50, 1, scheduling=Scheduling(tenant="answers"))
    order: dict[str, None] = {}
    while bench.scheduler.num_running + bench.scheduler.num_waiting:
        order |= dict.fromkeys(row.sequence.request_id for row in bench.step().rows)
    assert list(order) == ["a", "A", "B", "b"], "40 tokens and 39 scores weigh more than 51 tokens"


def test_answers_ride_in_the_rows_that_a_step_of_scores_would_pad() -> None:
    bench = Bench(options=measured(0.05, 0.05, Targets(ttft_s=1e-9, itl_s=1e9)))
    answering = bench.add("b", 4)
    bench.run_until(lambda: answering.num_output_tokens >= 2)
    scored = add_scored(bench, "a", 6, Scheduling(urgency=Urgency.HIGH))
    plans = bench.run_until(lambda: scored.finish_reason is not None)
    last_rows = [(row.sequence.request_id, row.is_computed) for row in plans[-1].rows]
    assert last_rows == [("a", True), ("b", False)]


def test_prompts_without_an_answer_say_nothing_of_how_long_answers_get() -> None:
    lengths = OutputLengths()
    lifecycle = Lifecycle(BlockPool(9), None, BLOCK_SIZE, WaitingQueue(9, 99))
    lifecycle.lengths = lengths
    for max_new_tokens, is_known in ((0, False), (3, True)):
        params = SamplingParams(max_new_tokens=max_new_tokens, prompt_logprobs=0)
        sequence = lifecycle.enter(Request("r", (1, 2), params), 0.0)
        lifecycle.finish(sequence, FinishReason.LENGTH)
        assert lengths.is_known == is_known
