"""Admission, phases, preemption, sharing and failure, each rule by an example."""

from __future__ import annotations

import pytest

from omruntime.buckets import Phase
from omruntime.errors import (
    DuplicateRequestError,
    OverloadedError,
    PromptTooLongError,
    RequestError,
)
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.entrance import MAX_LOOKED_PAST, MAX_OVERTAKES
from omruntime.scheduling.retry_pace import UNKNOWN_S
from omruntime.sequence import FinishReason, Request, Sequence, SequenceStatus
from omruntime.step import SampledToken, SamplingFailure
from tests.omruntime.scheduler_bench import AT_ONCE, BLOCK_SIZE, EOS, GOES_ON, Bench, rows_of

# Admission


def test_idle_scheduler_plans_nothing() -> None:
    assert Bench().scheduler.schedule() is None


def test_prompt_is_prefilled_in_chunks_and_then_decoded() -> None:
    bench = Bench()
    bench.add("a", 21)
    assert rows_of(bench.step()) == [("a", 0, 16)]
    plan = bench.step()
    assert rows_of(plan) == [("a", 16, 5)]
    assert plan.rows[0].samples
    assert rows_of(bench.step()) == [("a", 21, 1)]


@pytest.mark.parametrize(
    ("num_tokens", "chunks"),
    [(1, [1]), (7, [7]), (8, [8]), (9, [9]), (16, [16]), (17, [16, 1]), (32, [16, 16])],
)
def test_prompts_at_the_edges_of_buckets(num_tokens: int, chunks: list[int]) -> None:
    bench = Bench()
    bench.add("a", num_tokens)
    plans = [bench.step() for _ in chunks]
    assert [p.rows[0].num_tokens for p in plans] == chunks
    assert [p.rows[0].samples for p in plans] == [False] * (len(chunks) - 1) + [True]
    phases = [Phase.DECODE if n == 1 else Phase.PREFILL for n in chunks]
    assert [p.bucket.phase for p in plans] == phases


def test_same_live_id_twice_is_refused_and_free_again_after_its_end() -> None:
    """BL-39: the first request is untouched."""
    bench = Bench()
    first = bench.add("a", 4)
    with pytest.raises(DuplicateRequestError, match="'a' is that of a live request"):
        bench.add("a", 4)
    bench.step()
    assert first.status is SequenceStatus.RUNNING
    bench.scheduler.abort("a")
    bench.add("a", 4)


def test_empty_prompt_is_refused() -> None:
    """BL-30: a prompt without tokens gives nothing to compute."""
    with pytest.raises(RequestError, match="no tokens"):
        Bench().add("a", 0)


def test_prompt_beyond_the_model_length_is_refused_with_numbers() -> None:
    """BL-30: one token less than the limit is the longest prompt, and yields one token."""
    bench = Bench(max_model_len=20)
    with pytest.raises(PromptTooLongError, match=r"has 20 tokens, at most 19 .*model length 20"):
        bench.add("a", 20)
    sequence = bench.add("b", 19)
    bench.drain()
    assert sequence.num_output_tokens == 1
    assert sequence.finish_reason is FinishReason.LENGTH


def test_request_that_can_never_fit_into_the_pool_is_refused_with_numbers() -> None:
    bench = Bench(num_blocks=5)
    with pytest.raises(PromptTooLongError, match=r"has 17 tokens, at most 16 .*4 blocks of 4"):
        bench.add("a", 17)
    with pytest.raises(RequestError, match=r"10 tokens plus max_new_tokens 8 passes the 17"):
        bench.add("b", 10, max_new_tokens=8)
    bench.add("c", 10, max_new_tokens=7)
    bench.drain()


def test_answer_without_a_limit_ends_with_the_pool() -> None:
    bench = Bench(num_blocks=5)
    sequence = bench.add("a", 10)
    bench.drain()
    assert len(sequence.token_ids) == 17
    assert sequence.finish_reason is FinishReason.LENGTH


def test_max_new_tokens_beyond_the_model_length_is_cut() -> None:
    bench = Bench(max_model_len=20)
    sequence = bench.add("a", 10, max_new_tokens=10_000)
    bench.drain()
    assert sequence.num_output_tokens == 10
    assert sequence.finish_reason is FinishReason.LENGTH


def test_queue_limits_count_waiting_requests_only() -> None:
    bench = Bench(max_num_seqs=1, max_queued_requests=2, max_queued_tokens=10)
    bench.add("a", 9)
    bench.step()
    bench.add("b", 6)
    with pytest.raises(OverloadedError, match="max_queued_tokens"):
        bench.add("c", 5)
    bench.add("c", 4)
    with pytest.raises(OverloadedError, match="max_queued_requests"):
        bench.add("d", 1)
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (1, 2)
    assert bench.scheduler.num_waiting_tokens == 10
    bench.drain()
    bench.add("d", 1)


def test_a_burst_on_an_idle_engine_has_the_free_places_beside_the_queue() -> None:
    bench = Bench(max_num_seqs=3, max_queued_requests=2)
    bench.add("a", 4)
    bench.step()
    for name in "bcde":
        bench.add(name, 4)
    with pytest.raises(
        OverloadedError, match="4 wait, 2 of them for the next step, max_queued_requests is 2"
    ):
        bench.add("f", 4)
    bench.step()
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (3, 2)


def test_filling_an_idle_engine_is_not_taken_for_its_pace() -> None:
    bench = Bench(max_num_seqs=2, max_queued_requests=4)

    def told(name: str) -> float | None:
        with pytest.raises(OverloadedError) as caught:
            bench.add(name, 4)
        return caught.value.retry_after_s

    for name in "abcdef":
        bench.add(name, 4)
    bench.step()
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (2, 4)
    assert told("g") == UNKNOWN_S
    bench.scheduler.abort("a")
    bench.step()
    bench.add("g", 4)
    assert told("h") != UNKNOWN_S


def test_waiting_for_a_shared_prefill_is_not_taken_for_the_pace() -> None:
    """All of a burst but the first wait for its prefix, with places free: none says a pace."""
    bench = Bench(max_num_seqs=3, max_queued_requests=4)
    for name in "abcdefg":
        bench.add(name, 12, first_id=500)
    bench.step()
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (1, 6)
    bench.step()
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (3, 4)
    with pytest.raises(OverloadedError) as caught:
        bench.add("h", 4)
    assert caught.value.retry_after_s == UNKNOWN_S


def test_refused_request_leaves_no_trace() -> None:
    bench = Bench(max_num_seqs=1, max_queued_requests=1)
    bench.add("a", 4)
    bench.step()
    bench.add("c", 4)
    with pytest.raises(OverloadedError):
        bench.add("b", 4)
    assert bench.scheduler.abort("b") is None
    assert sorted(bench.scheduler.live_request_ids()) == ["a", "c"]


def test_no_more_run_than_may_at_once() -> None:
    bench = Bench(max_num_seqs=2)
    for name in "abc":
        bench.add(name, 4, max_new_tokens=3)
    bench.step()
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (2, 1)
    bench.drain()


# Room


def test_large_waiter_does_not_block_a_small_one_that_fits() -> None:
    bench = Bench(num_blocks=9)
    bench.add("a", 16, max_new_tokens=8)
    bench.step()
    large = bench.add("b", 20, max_new_tokens=1)
    small = bench.add("c", 4, max_new_tokens=1)
    bench.run_until(lambda: small.finish_reason is not None)
    assert large.status is SequenceStatus.WAITING
    bench.drain()
    assert large.finish_reason is FinishReason.LENGTH


def test_large_waiter_is_overtaken_a_bounded_number_of_times() -> None:
    bench = Bench(num_blocks=9, max_model_len=33)
    bench.add("z", 4, max_new_tokens=20)
    bench.step()
    large = bench.add("y", 31, max_new_tokens=2)
    num_passed = 0
    while large.status is SequenceStatus.WAITING:
        assert num_passed <= 2 * MAX_OVERTAKES, "the large one starves"
        small = bench.add(f"s{num_passed}", 3, max_new_tokens=1, first_id=num_passed * 10)
        while small.finish_reason is None and large.status is SequenceStatus.WAITING:
            bench.step()
        num_passed += 1
    assert num_passed == MAX_OVERTAKES + 1
    bench.drain()


def test_only_so_many_large_waiters_are_looked_past() -> None:
    """The time of a step stays bounded however many wait."""
    bench = Bench(num_blocks=12)
    bench.add("a", 16, max_new_tokens=8)
    bench.step()
    for number in range(MAX_LOOKED_PAST - 1):
        bench.add(f"b{number}", 30)
    small = bench.add("c", 4, max_new_tokens=2)
    bench.add("d0", 30)
    beyond = bench.add("e", 4, max_new_tokens=2)
    bench.step()
    assert small.status is SequenceStatus.RUNNING
    assert beyond.status is SequenceStatus.WAITING


def test_blocks_cover_exactly_the_tokens_computed() -> None:
    bench = Bench()
    sequence = bench.add("a", 18)
    bench.step()
    assert len(sequence.block_table) == 4
    bench.step()
    assert len(sequence.block_table) == 5


def test_table_grows_at_the_exact_block_edge() -> None:
    bench = Bench()
    sequence = bench.add("a", 7)
    bench.step()  # computes 7, knows 8
    assert len(sequence.block_table) == 2
    bench.step()  # position 7 is the last one of block 1
    assert len(sequence.block_table) == 2
    bench.step()  # position 8 begins block 2
    assert len(sequence.block_table) == 3


def test_youngest_is_preempted_when_blocks_run_out_and_keeps_its_tokens() -> None:
    bench = Bench(num_blocks=7, cached=False)
    old, young = bench.add("a", 7, 17), bench.add("b", 7, 17)
    bench.run_until(lambda: bench.scheduler.num_preemptions > 0)
    assert (old.status, young.status) == (SequenceStatus.RUNNING, SequenceStatus.WAITING)
    assert not young.block_table
    assert young.num_output_tokens > 0
    answer = young.token_ids.copy()
    bench.drain()
    assert young.token_ids[: len(answer)] == answer
    assert (old.num_output_tokens, young.num_output_tokens) == (17, 17)


def test_preempted_sequence_does_not_lose_its_turn() -> None:
    bench = Bench(num_blocks=7, cached=False)
    bench.add("a", 7, 17)
    young = bench.add("b", 7, 17)
    bench.step()
    later = bench.add("c", 12, 5)
    bench.run_until(lambda: bench.scheduler.num_preemptions > 0)
    bench.run_until(lambda: young.status is SequenceStatus.RUNNING)
    assert later.status is SequenceStatus.WAITING
    bench.drain()


def test_sequence_preempted_between_chunks_starts_over() -> None:
    bench = Bench(num_blocks=10, cached=False, decode_rows=1)
    old = bench.add("a", 10, max_new_tokens=24)
    bench.step()
    young = bench.add("b", 19, max_new_tokens=2, scheduling=AT_ONCE)
    bench.run_until(lambda: young.num_computed_tokens == 16)
    # Others take what the last chunk needs.
    taken = bench.pool.try_allocate(bench.pool.num_free) or []
    plan = bench.scheduler.schedule()
    assert plan is not None
    assert young.status is SequenceStatus.WAITING
    assert young.num_computed_tokens == 0
    assert [r.sequence for r in plan.rows] == [old]
    bench.pool.release(taken)
    bench.update(plan)
    plans = bench.run_until(lambda: young.num_computed_tokens > 0)
    assert rows_of(plans[-1]) == [("b", 0, 16)]
    bench.drain()


@pytest.mark.parametrize(("num_left", "expected"), [(6, ["a", "b"]), (5, ["a"]), (3, ["a"])])
def test_row_joins_a_prefill_step_only_with_blocks_to_spare(
    num_left: int, expected: list[str]
) -> None:
    """Either last chunk wants three blocks."""
    bench = Bench(cached=False, prefill_rows=2)
    bench.add("a", 27)
    young = bench.add("b", 26)
    assert rows_of(bench.step()) == [("a", 0, 16), ("b", 0, 16)]
    taken = bench.pool.try_allocate(bench.pool.num_free - num_left) or []
    plan = bench.scheduler.schedule()
    assert plan is not None
    assert [row[0] for row in rows_of(plan)] == expected
    assert young.status is SequenceStatus.RUNNING
    bench.pool.release(taken)
    bench.update(plan)
    bench.drain()


def test_row_preempted_for_the_oldest_is_not_in_the_step() -> None:
    bench = Bench(cached=False, prefill_rows=2)
    bench.add("a", 43)
    young = bench.add("b", 42)
    bench.run_until(lambda: young.num_computed_tokens == 32)
    taken = bench.pool.try_allocate(bench.pool.num_free) or []
    plan = bench.scheduler.schedule()
    assert plan is not None
    assert rows_of(plan) == [("a", 32, 11)]
    assert young.status is SequenceStatus.WAITING
    bench.pool.release(taken)
    bench.update(plan)
    bench.drain()


def test_preempted_sequence_finds_its_own_blocks_in_the_cache() -> None:
    bench = Bench(num_blocks=12)
    bench.add("a", 8, max_new_tokens=20)
    young = bench.add("b", 8, max_new_tokens=20)
    bench.run_until(lambda: young.num_preemptions > 0)
    plans = bench.run_until(lambda: young.num_computed_tokens > 0)
    starts = [start for name, start, _ in rows_of(plans[-1]) if name == "b"]
    assert starts[0] >= BLOCK_SIZE
    # Its own blocks are no saving for the caller.
    assert (young.num_cached_tokens, bench.scheduler.num_prefix_hit_tokens) == (0, 0)
    bench.drain()


def test_admission_leaves_room_to_grow() -> None:
    """Two that would fit now but not after a few tokens run one after the other."""
    bench = Bench(num_blocks=5, max_model_len=17, cached=False)
    bench.add("a", 8, max_new_tokens=8)
    bench.add("b", 8, max_new_tokens=8)
    bench.step()
    assert bench.scheduler.num_running == 1
    bench.drain()
    assert bench.scheduler.num_preemptions == 0


# Phases


def test_prompt_and_answers_both_advance() -> None:
    bench = Bench(decode_rows=1)
    bench.add("a", 4)
    bench.step()
    bench.add("b", 48)
    phases = {bench.step().bucket.phase for _ in range(40)}
    assert phases == set(Phase)


def test_prompts_do_not_starve_under_constant_decode_load() -> None:
    bench = Bench()
    for name in "abc":
        bench.add(name, 4)
    bench.run_until(lambda: bench.scheduler.num_waiting == 0)
    late = bench.add("d", 30)
    bench.run_until(lambda: late.num_output_tokens > 0)
    assert bench.scheduler.num_running == 4


def test_more_rows_than_a_bucket_takes_are_decoded_in_turn() -> None:
    bench = Bench(max_num_seqs=5, decode_rows=2)
    sequences = [bench.add(name, 4) for name in "abcde"]
    bench.run_until(lambda: all(s.num_output_tokens for s in sequences))
    before = {s.request_id: s.num_output_tokens for s in sequences}
    for _ in range(5):
        bench.step()
    assert {s.num_output_tokens - before[s.request_id] for s in sequences} == {2}


def test_all_rows_finish_in_one_step() -> None:
    bench = Bench()
    sequences = [bench.add(name, 4) for name in "abcd"]
    bench.run_until(lambda: all(s.num_output_tokens for s in sequences))
    plan = bench.plan()
    assert bench.update(plan, SampledToken(EOS)) == [r.sequence for r in plan.rows]
    assert {s.finish_reason for s in sequences} == {FinishReason.STOP}
    assert bench.pool.num_referenced == 0
    assert bench.scheduler.schedule() is None


def test_shorter_sequence_after_a_longer_one_has_only_blocks_of_its_own() -> None:
    bench = Bench(num_blocks=9)
    bench.add("a", 30, max_new_tokens=1)
    bench.drain()
    short = bench.add("b", 5)
    bench.step()
    assert len(short.block_table) == 2
    assert short.token_ids[:5] == list(short.request.prompt_token_ids)


# Prefix cache


def test_equal_beginning_is_computed_once() -> None:
    bench = Bench()
    bench.add("a", 12, max_new_tokens=1)
    bench.drain()
    hit = bench.add("b", 14, first_id=1000 * (1 + ord("a")))
    assert rows_of(bench.step()) == [("b", 12, 2)]
    assert (hit.num_cached_tokens, bench.scheduler.num_prefix_hit_tokens) == (12, 12)


def test_fully_known_prompt_still_computes_a_token() -> None:
    bench = Bench()
    for name in "ab":
        bench.add(name, 13, max_new_tokens=1, first_id=0)
        bench.run_until(lambda: bench.scheduler.num_running + bench.scheduler.num_waiting == 0)
    third = bench.add("c", 13, first_id=0)
    plan = bench.step()
    assert rows_of(plan) == [("c", 12, 1)]
    assert plan.bucket.phase is Phase.DECODE
    assert third.num_output_tokens == 1


def test_prompt_that_ends_at_a_block_edge_computes_its_last_block() -> None:
    bench = Bench()
    bench.add("a", 12, max_new_tokens=1, first_id=0)
    bench.drain()
    bench.add("b", 12, first_id=0)
    assert rows_of(bench.step()) == [("b", 8, 4)]


def test_answers_are_found_by_the_next_turn() -> None:
    bench = Bench()
    first = bench.add("a", 6, max_new_tokens=7)
    bench.drain()
    prompt = (*first.token_ids, 1, 2, 3)
    second = bench.scheduler.add(Request("b", prompt, SamplingParams()))
    bench.step()
    assert second.num_cached_tokens == 12


def test_salts_do_not_share() -> None:
    bench = Bench()
    bench.add("a", 12, max_new_tokens=1, first_id=0, salt="one")
    bench.drain()
    other = bench.add("b", 12, first_id=0, salt="two")
    bench.step()
    assert other.num_cached_tokens == 0


def test_abort_while_waiting_for_a_place_holds_no_cached_blocks() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add("a", 12, max_new_tokens=1, first_id=0)
    bench.drain()
    running = bench.add("b", 4)
    bench.step()
    waiter = bench.add("c", 12, first_id=0)
    bench.step()
    assert bench.scheduler.abort("c") is waiter
    assert bench.pool.num_referenced == len(running.block_table)
    bench.scheduler.check()
    bench.drain()


def test_flush_while_blocks_are_held_changes_no_running_sequence() -> None:
    bench = Bench()
    sequence = bench.add("a", 12, max_new_tokens=9)
    bench.step()
    assert bench.cache is not None
    table = sequence.block_table.copy()
    bench.cache.flush()
    bench.step()
    assert sequence.block_table[: len(table)] == table
    bench.drain()


# Sharing between the answers of one prompt


def lead(bench: Bench, num_tokens: int, num_siblings: int = 1) -> list[Sequence]:
    leader = bench.add("a", num_tokens, first_id=0)
    names = "bcd"[:num_siblings]
    return [leader, *(bench.add(n, num_tokens, first_id=0, leader="a") for n in names)]


def test_siblings_wait_for_their_leader_without_blocking_others() -> None:
    bench = Bench(cached=False)
    leader, sibling = lead(bench, 30)
    other = bench.add("z", 4)
    bench.step()
    assert sibling.status is SequenceStatus.WAITING
    assert (leader.status, other.status) == (SequenceStatus.RUNNING, SequenceStatus.RUNNING)


def test_siblings_share_the_prompt_and_copy_the_tail_they_write() -> None:
    bench = Bench(cached=False)
    leader, sibling = lead(bench, 10)
    assert rows_of(bench.step()) == [("a", 0, 10)]
    shared_tail = leader.block_table[2]
    plan = bench.plan()
    assert rows_of(plan) == [("a", 10, 1), ("b", 9, 1)]
    assert leader.block_table[:2] == sibling.block_table[:2]
    # One of the two copies; the last holder writes in place.
    assert plan.block_copies == ((shared_tail, leader.block_table[2]),)
    assert sibling.block_table[2] == shared_tail
    bench.update(plan)
    assert sibling.num_output_tokens == 1


def test_leader_and_two_siblings_copy_in_one_step() -> None:
    bench = Bench(cached=False)
    sequences = lead(bench, 10, num_siblings=2)
    bench.step()
    tail = sequences[0].block_table[2]
    plan = bench.plan()
    targets = [target for _, target in plan.block_copies]
    assert [source for source, _ in plan.block_copies] == [tail, tail]
    assert sorted([tail, *targets]) == sorted(s.block_table[2] for s in sequences)
    bench.update(plan)


def test_prompt_that_ends_after_a_block_edge_is_shared_without_a_copy() -> None:
    bench = Bench(cached=False)
    leader, sibling = lead(bench, 9)
    bench.step()
    plan = bench.plan()
    assert plan.block_copies == ()
    assert leader.block_table[:2] == sibling.block_table[:2]
    assert leader.block_table[2] != sibling.block_table[2]


def test_sibling_is_admitted_normally_when_its_leader_is_gone() -> None:
    bench = Bench(cached=False)
    _, sibling = lead(bench, 30)
    bench.step()
    bench.scheduler.abort("a")
    assert rows_of(bench.step()) == [("b", 0, 16)]
    bench.drain()
    assert sibling.finish_reason is FinishReason.LENGTH


def test_sibling_does_not_wait_for_a_leader_that_was_preempted() -> None:
    bench = Bench(cached=False, decode_rows=1)
    bench.add("z", 4)
    bench.step()
    leader, sibling = lead(bench, 30)
    bench.run_until(lambda: leader.num_computed_tokens == 16)
    taken = bench.pool.try_allocate(bench.pool.num_free) or []
    plan = bench.scheduler.schedule()
    assert plan is not None
    assert leader.num_preemptions == 1
    bench.pool.release(taken)
    bench.update(plan)
    bench.step()
    assert (leader.status, sibling.status) == (SequenceStatus.RUNNING, SequenceStatus.RUNNING)
    bench.drain()


def test_leader_with_another_prompt_or_salt_shares_nothing() -> None:
    bench = Bench(cached=False, max_num_seqs=3)
    bench.add("a", 10, first_id=0)
    bench.step()
    bench.add("b", 10, first_id=1, leader="a")
    bench.add("c", 10, first_id=0, salt="x", leader="a")
    starts = {r[0]: r[1] for _ in range(5) for r in rows_of(bench.step()) if r[2] > 1}
    assert starts == {"b": 0, "c": 0}


def test_sequences_that_name_each_other_as_leader_both_run() -> None:
    bench = Bench(cached=False)
    bench.add("a", 10, max_new_tokens=2, first_id=0, leader="b")
    bench.add("b", 10, max_new_tokens=2, first_id=0, leader="a")
    bench.add("c", 10, max_new_tokens=2, first_id=0, leader="c")
    bench.drain()


def test_last_holder_of_a_cached_tail_takes_it_out_of_the_cache() -> None:
    """The leader filled the shared block with its answer and left; the sibling writes on it."""
    bench = Bench()
    leader, sibling = lead(bench, 10)
    bench.scheduler.abort("b")
    bench.run_until(lambda: leader.num_computed_tokens >= 12)
    sibling = bench.add("b", 10, first_id=0, leader="a")
    bench.add("z", 16)  # its prefill comes first, so that the sibling does not copy yet
    bench.step()
    tail = leader.block_table[2]
    assert sibling.block_table[2] == tail
    bench.scheduler.abort("a")
    probe = Sequence.of(Request("probe", (*leader.token_ids[:12], 0), SamplingParams()), 0)
    assert bench.cache is not None
    assert len(bench.cache.match(probe)) == 3
    plan = bench.step()
    assert ("b", 9, 1) in rows_of(plan)
    assert sibling.block_table[2] == tail
    assert len(bench.cache.match(probe)) == 2


# Ends


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_abort_frees_everything_at_once_in_any_state(num_steps: int) -> None:
    """BL-43: queued, between two chunks before the first token, and while decoding."""
    bench = Bench()
    sequence = bench.add("a", 20)
    for _ in range(num_steps):
        bench.step()
    assert bench.scheduler.abort("a") is sequence
    assert sequence.finish_reason is FinishReason.ABORT
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (0, 0)
    assert (bench.pool.num_referenced, bench.scheduler.num_waiting_tokens) == (0, 0)
    bench.scheduler.check()


def test_abort_of_unknown_finished_and_aborted_ids_is_none() -> None:
    bench = Bench()
    assert bench.scheduler.abort("nobody") is None
    bench.add("a", 4, max_new_tokens=1)
    bench.drain()
    assert bench.scheduler.abort("a") is None
    bench.add("b", 4)
    assert bench.scheduler.abort("b") is not None
    assert bench.scheduler.abort("b") is None
    bench.scheduler.check()


def test_abort_within_a_step_drops_its_row_only() -> None:
    bench = Bench()
    one, two = bench.add("a", 4), bench.add("b", 4)
    bench.run_until(lambda: two.num_output_tokens > 0)
    before = (one.num_output_tokens, two.num_output_tokens)
    plan = bench.plan()
    bench.scheduler.abort("b")
    bench.scheduler.check()
    assert bench.update(plan) == []
    assert (one.num_output_tokens, two.num_output_tokens) == (before[0] + 1, before[1])
    assert two.finish_reason is FinishReason.ABORT


def test_failed_step_ends_its_rows_and_no_others() -> None:
    """BL-35: a device fault in one step."""
    bench = Bench(decode_rows=1)
    one, other = bench.add("a", 4), bench.add("b", 20)
    bench.step()
    plan = bench.plan()
    while [r.sequence for r in plan.rows] != [one]:
        bench.update(plan)
        plan = bench.plan()
    assert bench.scheduler.fail(plan) == [one]
    bench.scheduler.check()
    assert one.finish_reason is FinishReason.ERROR
    bench.drain()
    assert other.finish_reason is FinishReason.LENGTH


def test_failed_step_leaves_the_end_of_a_row_aborted_within_it() -> None:
    bench = Bench()
    one, two = bench.add("a", 4), bench.add("b", 4)
    bench.run_until(lambda: two.num_output_tokens > 0)
    plan = bench.plan()
    bench.scheduler.abort("a")
    assert bench.scheduler.fail(plan) == [two]
    assert (one.finish_reason, two.finish_reason) == (FinishReason.ABORT, FinishReason.ERROR)
    bench.scheduler.check()


def test_blocks_of_a_failed_step_are_not_cached() -> None:
    bench = Bench()
    bench.add("a", 12, first_id=0)
    bench.scheduler.fail(bench.plan())
    assert bench.pool.num_referenced == 0
    again = bench.add("b", 12, first_id=0)
    bench.step()
    assert again.num_cached_tokens == 0


def test_row_without_a_token_ends_with_error_and_the_others_go_on() -> None:
    """BL-10: logits that are not numbers fail their own request only."""
    bench = Bench()
    one, two = bench.add("a", 4), bench.add("b", 4)
    bench.run_until(lambda: two.num_output_tokens > 0)
    plan = bench.plan()
    assert bench.scheduler.update(plan, [SamplingFailure("NaN"), GOES_ON]) == [one]
    bench.scheduler.check()
    assert one.finish_reason is FinishReason.ERROR
    assert two.finish_reason is None
    bench.drain()


def test_next_plan_before_the_last_was_answered_is_noticed() -> None:
    bench = Bench()
    bench.add("a", 4)
    plan = bench.plan()
    with pytest.raises(AssertionError, match="neither updated nor failed"):
        bench.scheduler.schedule()
    bench.update(plan)
    with pytest.raises(AssertionError, match="not the plan in flight"):
        bench.scheduler.update(plan, [GOES_ON])


def test_check_notices_a_leaked_block() -> None:
    bench = Bench()
    bench.add("a", 4)
    bench.step()
    bench.pool.try_allocate(1)
    with pytest.raises(AssertionError, match="held by no sequence"):
        bench.scheduler.check()
