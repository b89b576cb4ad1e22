"""What a waiting sequence reuses and how many blocks it takes, summed up without a scheduler."""

from __future__ import annotations

import pytest

from omruntime.blocks.block_pool import BlockPool
from omruntime.blocks.prefix_cache import PrefixCache
from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.admission import Admission, Reuse
from omruntime.scheduling.output_lengths import OutputLengths
from omruntime.scheduling.row_choice import RowChooser
from omruntime.sequence import Request, Sequence, SequenceStatus

BLOCK_SIZE = 4
NOTHING = Reuse([], 0, 0)


def sequence_of(
    num_prompt: int, num_answer: int = 0, arrival: int = 1, max_new_tokens: int | None = None
) -> Sequence:
    params = SamplingParams(max_new_tokens=max_new_tokens)
    request = Request(f"r{arrival}", tuple(range(num_prompt)), params)
    sequence = Sequence.of(request, arrival)
    sequence.token_ids += range(num_prompt, num_prompt + num_answer)
    return sequence


def run(pool: BlockPool, sequence: Sequence, num_computed: int) -> Sequence:
    sequence.block_table = pool.try_allocate(-(-num_computed // BLOCK_SIZE)) or []
    sequence.num_computed_tokens = num_computed
    sequence.status = SequenceStatus.RUNNING
    return sequence


def make_admission(num_blocks: int = 40, cached: bool = True) -> tuple[BlockPool, Admission]:
    pool = BlockPool(num_blocks)
    cache = PrefixCache(pool, BLOCK_SIZE, "model") if cached else None
    return pool, admission_over(pool, cache)


def admission_over(
    pool: BlockPool, cache: PrefixCache | None, lengths: OutputLengths | None = None
) -> Admission:
    table = BucketTable(
        [Bucket(Phase.PREFILL, 1, 16, 16), Bucket(Phase.DECODE, 4, 1, 16)], BLOCK_SIZE
    )
    chooser = RowChooser(table, max_chunk_tokens=16)
    return Admission(pool, cache, chooser, lengths or OutputLengths(), max_model_len=64)


# What is reused


def test_leader_is_shared_as_soon_as_one_prompt_token_is_left() -> None:
    pool, admission = make_admission(cached=False)
    leader, sibling = run(pool, sequence_of(17, arrival=1), 16), sequence_of(17, arrival=2)
    assert not admission.waits_for(sibling, leader)
    assert admission.find_reuse(sibling, leader) == Reuse(leader.block_table, 16, 0)


def test_nothing_is_shared_before() -> None:
    pool, admission = make_admission(cached=False)
    leader, sibling = run(pool, sequence_of(17, arrival=1), 15), sequence_of(17, arrival=2)
    assert admission.waits_for(sibling, leader)
    assert admission.find_reuse(sibling, leader) == NOTHING


def test_blocks_of_a_leader_s_answer_are_not_shared() -> None:
    pool, admission = make_admission(cached=False)
    leader = run(pool, sequence_of(10, num_answer=10, arrival=1), 19)
    reuse = admission.find_reuse(sequence_of(10, arrival=2), leader)
    assert reuse == Reuse(leader.block_table[:3], 9, 0)


def test_longer_cached_beginning_wins_over_the_leader() -> None:
    """A preempted sibling finds its own answer, which the leader does not hold."""
    pool = BlockPool(40)
    cache = PrefixCache(pool, BLOCK_SIZE, "model")
    admission = admission_over(pool, cache)
    leader = run(pool, sequence_of(10, arrival=1), 10)
    sibling = run(pool, sequence_of(10, num_answer=7, arrival=2), 16)
    cache.insert(sibling, 0)
    assert admission.find_reuse(sibling, leader) == Reuse(sibling.block_table, 16, 16)


@pytest.mark.parametrize("num_tokens", [1, 2, 9])
def test_leader_without_blocks_shares_nothing(num_tokens: int) -> None:
    _, admission = make_admission(cached=False)
    leader, sibling = sequence_of(num_tokens, arrival=1), sequence_of(num_tokens, arrival=2)
    assert admission.find_reuse(sibling, leader) == NOTHING


def test_a_later_or_preempted_leader_is_not_waited_for() -> None:
    _, admission = make_admission()
    sibling = sequence_of(9, arrival=2)
    assert admission.waits_for(sibling, sequence_of(9, arrival=1))
    assert not admission.waits_for(sibling, sequence_of(9, arrival=3))
    assert not admission.waits_for(sibling, sibling)
    assert not admission.waits_for(sibling, None)
    preempted = sequence_of(9, arrival=1)
    preempted.num_preemptions = 1
    assert not admission.waits_for(sibling, preempted)


# How many blocks


@pytest.mark.parametrize(
    ("num_prompt", "max_new_tokens", "expected"),
    [
        (8, None, 3),  # two blocks for the prompt and one to grow
        (9, None, 4),
        (8, 1, 2),  # one token ends it, and the last token is never computed
        (8, 2, 3),
        (9, 4, 3),
        (9, 5, 4),
        (60, None, 16),  # the model's length leaves room for three more positions
    ],
)
def test_new_sequence_takes_its_prompt_and_a_block_if_it_grows(
    num_prompt: int, max_new_tokens: int | None, expected: int
) -> None:
    _, admission = make_admission()
    sequence = sequence_of(num_prompt, max_new_tokens=max_new_tokens)
    assert admission.needed(sequence, NOTHING).num_soon == expected


@pytest.mark.parametrize(("num_prompt", "expected"), [(7, 2), (8, 2), (9, 3), (64, 16)])
def test_all_of_a_prompt_without_an_answer_is_computed(num_prompt: int, expected: int) -> None:
    """Its last token too, which an answer's last token never is."""
    _, admission = make_admission(cached=False)
    params = SamplingParams(max_new_tokens=0, prompt_logprobs=0)
    sequence = Sequence.of(Request("r", tuple(range(num_prompt)), params), 1)
    assert admission.needed(sequence, NOTHING).num_soon == expected


def test_reused_blocks_cost_when_they_are_free_and_not_when_they_are_held() -> None:
    pool, admission = make_admission()
    held = pool.try_allocate(2) or []
    sequence = sequence_of(12, max_new_tokens=1)
    assert admission.needed(sequence, Reuse(held, 8, 8)).num_soon == 1
    pool.release(held)
    assert admission.needed(sequence, Reuse(held, 8, 8)).num_soon == 3


def test_partly_shared_tail_costs_its_copy() -> None:
    pool, admission = make_admission()
    held = pool.try_allocate(3) or []
    sequence = sequence_of(12, max_new_tokens=1)
    assert admission.needed(sequence, Reuse(held, 11, 0)).num_soon == 1


def test_spare_are_the_free_blocks_that_no_running_sequence_wants_soon() -> None:
    pool, admission = make_admission(num_blocks=11)
    assert admission.to_spare([]).num_soon == 10
    prefilling = run(pool, sequence_of(20, max_new_tokens=1), 8)  # 5 blocks, holds 2
    decoding = run(pool, sequence_of(6), 6)  # 3 blocks soon, holds 2
    assert pool.num_free == 6
    assert admission.to_spare([prefilling, decoding]).num_soon == 6 - 3 - 1
