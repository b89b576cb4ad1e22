"""Who is admitted: urgency, ageing, tenants, bets on lengths, and shared beginnings."""

from __future__ import annotations

import pytest

from omruntime.scheduling.ageing import AGEING_S
from omruntime.scheduling.scheduler import SchedulerOptions
from omruntime.scheduling.shared_prefill import MAX_PREFIX_WAITS
from omruntime.scheduling.turn import Scheduling, Urgency
from omruntime.sequence import FinishReason, SequenceStatus
from omruntime.step import SampledToken
from tests.omruntime.scheduler_bench import EOS, Bench, rows_of

LOW, HIGH = Scheduling(urgency=Urgency.LOW), Scheduling(urgency=Urgency.HIGH)


# Urgency


def test_higher_classes_are_admitted_first() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add("a", 4, max_new_tokens=2)
    bench.step()
    order = [bench.add("l", 4, 1, scheduling=LOW), bench.add("n", 4, 1)]
    order += [bench.add("h", 4, 1, scheduling=Scheduling(urgency=Urgency.NORMAL))]
    ended: list[str] = []
    while bench.scheduler.num_waiting + bench.scheduler.num_running:
        ended += [s.request_id for s in bench.update(bench.plan())]
    assert ended == ["a", "n", "h", "l"]


def test_high_urgency_takes_a_place_of_a_full_running_set() -> None:
    bench = Bench(max_num_seqs=2)
    old, young = bench.add("a", 4), bench.add("b", 4)
    bench.run_until(lambda: young.num_output_tokens > 2)
    urgent = bench.add("u", 4, max_new_tokens=3, scheduling=HIGH)
    bench.step()
    assert urgent.status is SequenceStatus.RUNNING
    assert (old.status, young.status) == (SequenceStatus.RUNNING, SequenceStatus.WAITING)
    bench.drain()
    assert young.num_preemptions == 1


def test_the_least_urgent_goes_first_and_of_these_the_youngest() -> None:
    bench = Bench(max_num_seqs=3)
    low = bench.add("a", 4, scheduling=LOW)
    normal = [bench.add(name, 4) for name in "bc"]
    bench.run_until(lambda: all(s.num_output_tokens for s in (low, *normal)))
    bench.add("u", 4, scheduling=HIGH)
    bench.step()
    assert low.status is SequenceStatus.WAITING
    bench.add("v", 4, scheduling=HIGH)
    bench.step()
    assert [s.status for s in normal] == [SequenceStatus.RUNNING, SequenceStatus.WAITING]


def test_equal_urgency_never_takes_a_place() -> None:
    bench = Bench(max_num_seqs=1)
    first = bench.add("a", 4, max_new_tokens=30)
    bench.step()
    bench.add("b", 4, max_new_tokens=30)
    for _ in range(50):
        bench.now += AGEING_S  # it rises by waiting, which gives a better turn and no more
        bench.step()
        if first.finish_reason is not None:
            break
    assert first.finish_reason is FinishReason.LENGTH
    bench.drain()
    assert bench.scheduler.num_preemptions == 0


def test_nobody_makes_way_when_that_would_not_be_enough() -> None:
    bench = Bench(num_blocks=9, max_num_seqs=2, max_model_len=32)
    keeper = bench.add("a", 12, max_new_tokens=4, scheduling=HIGH)
    small = bench.add("b", 4, max_new_tokens=4, scheduling=LOW)
    bench.run_until(lambda: small.num_output_tokens > 0 and keeper.num_output_tokens > 0)
    bench.add("u", 27, max_new_tokens=2, scheduling=HIGH)
    bench.plan()
    assert small.status is SequenceStatus.RUNNING


def test_the_preempted_one_is_first_of_its_class_again() -> None:
    bench = Bench(max_num_seqs=1)
    first = bench.add("a", 4, max_new_tokens=9)
    bench.step()
    later = bench.add("b", 4, max_new_tokens=2)
    urgent = bench.add("u", 4, max_new_tokens=2, scheduling=HIGH)
    bench.run_until(lambda: urgent.finish_reason is not None)
    bench.run_until(lambda: first.finish_reason is not None)
    assert later.num_output_tokens == 0
    bench.drain()


def test_low_urgency_does_not_starve_under_a_stream_of_high() -> None:
    bench = Bench(max_num_seqs=1)
    low = bench.add("a", 4, max_new_tokens=3, scheduling=LOW)
    for number in range(200):
        bench.add(f"u{number}", 4, max_new_tokens=2, scheduling=HIGH)
        bench.now += 1.0
        for _ in range(2):
            bench.step()
        if low.finish_reason is not None:
            break
    assert low.finish_reason is FinishReason.LENGTH
    assert number >= 2 * AGEING_S / 2


def test_low_urgency_does_not_starve_once_it_runs() -> None:
    """Admitted at once, as there is room, it waits for a step while others always come first."""
    bench = Bench(cached=False)
    low = bench.add("a", 9, max_new_tokens=1, scheduling=LOW)
    for number in range(200):
        bench.add(f"u{number}", 9, max_new_tokens=1, scheduling=HIGH)
        bench.now += 1.0
        bench.step()
        assert low.status is not SequenceStatus.WAITING
        if low.finish_reason is not None:
            break
    assert low.finish_reason is FinishReason.LENGTH
    assert number >= 2 * AGEING_S / 2


# Tenants


def served_in_order(bench: Bench) -> list[str]:
    ended: list[str] = []
    while bench.scheduler.num_waiting + bench.scheduler.num_running:
        ended += [s.request_id for s in bench.update(bench.plan())]
    return ended


def test_a_flood_of_one_tenant_leaves_the_others_their_turns() -> None:
    bench = Bench(max_num_seqs=1)
    for number in range(6):
        bench.add(f"f{number}", 4, max_new_tokens=2, scheduling=Scheduling(tenant="flood"))
    for number in range(3):
        bench.add(f"q{number}", 4, max_new_tokens=2, scheduling=Scheduling(tenant="quiet"))
    order = served_in_order(bench)
    assert max(order.index(f"q{n}") for n in range(3)) <= 6


def test_weights_give_shares() -> None:
    bench = Bench(max_num_seqs=1, max_queued_requests=99)
    for number in range(12):
        heavy = Scheduling(tenant="heavy", tenant_weight=3.0)
        bench.add(f"h{number}", 4, max_new_tokens=2, scheduling=heavy)
        bench.add(f"l{number}", 4, max_new_tokens=2, scheduling=Scheduling(tenant="light"))
    first_half = served_in_order(bench)[:12]
    assert sum(name.startswith("h") for name in first_half) == 9


# Time


def test_queue_timeout_ends_a_waiter_and_no_runner() -> None:
    bench = Bench(max_num_seqs=1)
    timed = Scheduling(queue_timeout_s=2.0)
    runner = bench.add("a", 4, scheduling=timed)
    bench.step()
    waiter = bench.add("b", 4, scheduling=timed)
    assert bench.scheduler.expire(1.999) == []
    assert bench.scheduler.expire(2.0) == [waiter]
    assert waiter.finish_reason is FinishReason.ABORT
    assert "queue_timeout_s of 2" in waiter.finish_detail
    assert runner.status is SequenceStatus.RUNNING
    bench.scheduler.check()
    bench.drain()


def test_a_preempted_one_is_not_timed_out_as_if_it_had_never_run() -> None:
    bench = Bench(max_num_seqs=1)
    victim = bench.add("a", 4, scheduling=Scheduling(queue_timeout_s=2.0))
    bench.step()
    bench.add("u", 4, scheduling=HIGH)
    bench.step()
    assert victim.status is SequenceStatus.WAITING
    assert bench.scheduler.expire(100.0) == []


@pytest.mark.parametrize("num_steps", [0, 1, 2, 6])
def test_a_deadline_ends_a_request_in_any_state(num_steps: int) -> None:
    """BL-43: queued, in prefill before the first token, and while decoding."""
    bench = Bench()
    sequence = bench.add("a", 20, scheduling=Scheduling(deadline=5.0))
    for _ in range(num_steps):
        bench.step()
    assert bench.scheduler.expire(4.9) == []
    assert bench.scheduler.expire(5.0) == [sequence]
    assert (sequence.finish_reason, bench.pool.num_referenced) == (FinishReason.ABORT, 0)
    assert "deadline" in sequence.finish_detail
    assert bench.scheduler.expire(6.0) == []
    bench.scheduler.check()


def test_a_deadline_racing_the_last_token_ends_once() -> None:
    bench = Bench()
    sequence = bench.add("a", 4, max_new_tokens=1, scheduling=Scheduling(deadline=5.0))
    assert bench.update(bench.plan()) == [sequence]
    assert bench.scheduler.expire(9.0) == []
    assert sequence.finish_reason is FinishReason.LENGTH


# Bets on lengths


def test_observed_lengths_hold_back_what_would_be_preempted() -> None:
    """Answers of 20 tokens: two of them at once need more than the pool and a quarter."""
    bench = Bench(num_blocks=9, max_model_len=32, cached=False)
    for number in range(3):
        bench.add(f"w{number}", 4, max_new_tokens=24)
        bench.drain()
    for name in "ab":
        bench.add(name, 4)
    bench.step()
    bench.step()
    assert bench.scheduler.num_running == 1


def test_short_observed_lengths_let_more_in_than_the_limits_would() -> None:
    bench = Bench(num_blocks=9, max_model_len=32, cached=False)
    bench.add("w", 4)
    bench.update(bench.plan(), SampledToken(EOS))
    for name in "abc":
        bench.add(name, 4)
    bench.plan()
    assert bench.scheduler.num_running == 3


# Shared beginnings


def test_a_second_request_waits_for_the_beginning_that_another_computes() -> None:
    bench = Bench()
    bench.add("a", 40, first_id=0)
    bench.step()
    second = bench.add("b", 42, first_id=0)
    bench.step()
    assert second.status is SequenceStatus.WAITING
    bench.run_until(lambda: second.status is SequenceStatus.RUNNING)
    assert second.num_cached_tokens == 40
    assert bench.scheduler.num_prefix_hit_tokens == 40
    bench.drain()


def test_a_short_common_beginning_is_not_waited_for() -> None:
    bench = Bench()
    bench.add("a", 40, first_id=0)
    bench.step()
    prompt_start = 32  # shares nothing from the first token on
    other = bench.add("b", 40, first_id=prompt_start)
    bench.step()
    assert other.status is SequenceStatus.RUNNING


def test_salts_do_not_wait_for_each_other() -> None:
    bench = Bench()
    bench.add("a", 40, first_id=0, salt="one")
    bench.step()
    other = bench.add("b", 40, first_id=0, salt="two")
    bench.step()
    assert other.status is SequenceStatus.RUNNING


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.STOP])
def test_nobody_waits_for_a_beginning_whose_computer_has_gone(reason: FinishReason) -> None:
    bench = Bench()
    bench.add("a", 40, first_id=0)
    bench.step()
    second = bench.add("b", 42, first_id=0)
    bench.step()
    bench.scheduler.abort("a", reason)
    bench.step()
    assert second.status is SequenceStatus.RUNNING
    bench.drain()


def test_the_wait_for_a_beginning_is_bounded() -> None:
    bench = Bench(options=SchedulerOptions())
    leader = bench.add("a", 40, first_id=0)
    bench.step()
    second = bench.add("b", 42, first_id=0)
    second.num_prefix_waits = MAX_PREFIX_WAITS
    bench.step()
    assert leader.num_output_tokens == 0
    assert second.status is SequenceStatus.RUNNING
    bench.drain()


def test_abort_while_waiting_for_another_s_beginning_holds_nothing() -> None:
    bench = Bench()
    leader = bench.add("a", 40, first_id=0)
    bench.step()
    waiter = bench.add("b", 42, first_id=0)
    bench.step()
    assert bench.scheduler.abort("b") is waiter
    assert bench.pool.num_referenced == len(leader.block_table)
    bench.scheduler.check()
    bench.drain()


def test_prompt_tokens_ride_along_in_padded_decode_rows() -> None:
    bench = Bench(cached=False)
    old = bench.add("a", 4)
    bench.run_until(lambda: old.num_output_tokens > 0)
    bench.add("b", 48, max_new_tokens=1)
    plan = bench.step()
    while plan.bucket.phase.value == "prefill":
        plan = bench.step()
    assert [row[0] for row in rows_of(plan)] == ["a", "b"]
    assert rows_of(plan)[1][2] == 1
    assert not plan.rows[1].samples
    bench.drain()
