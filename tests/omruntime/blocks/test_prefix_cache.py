"""A hit is the longest computed prefix with equal tokens and keys, and never anything else."""

from __future__ import annotations

from omruntime.blocks.block_key import sha256_digest
from omruntime.blocks.block_pool import BlockPool
from omruntime.blocks.prefix_cache import PrefixCache, PrefixCacheCounters
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.turn import Scheduling
from omruntime.sequence import Adapter, Request, Sequence

BLOCK_SIZE = 2


def sequence_of(
    *token_ids: int, salt: str = "", adapter: Adapter | None = None, keeps: bool = False
) -> Sequence:
    wishes = Scheduling(keeps_prefix=keeps)
    request = Request("r", token_ids, SamplingParams(), salt, scheduling=wishes, adapter=adapter)
    return Sequence.of(request, 0)


def compute(pool: BlockPool, cache: PrefixCache, sequence: Sequence) -> list[int]:
    """Give a sequence blocks for all its tokens as if it had been computed."""
    num_tokens = len(sequence.token_ids)
    sequence.block_table = pool.try_allocate(-(-num_tokens // BLOCK_SIZE)) or []
    sequence.num_computed_tokens = num_tokens
    cache.insert(sequence, 0)
    return sequence.block_table


def make_cache(num_blocks: int = 10, identity: str = "model") -> tuple[BlockPool, PrefixCache]:
    pool = BlockPool(num_blocks)
    return pool, PrefixCache(pool, BLOCK_SIZE, identity)


def test_longest_run_of_full_blocks_is_found() -> None:
    pool, cache = make_cache()
    table = compute(pool, cache, sequence_of(1, 2, 3, 4, 5))
    assert cache.match(sequence_of(1, 2, 3, 4, 5, 6, 7)) == table[:2]
    assert cache.match(sequence_of(1, 2, 3, 9, 5)) == table[:1]
    assert cache.match(sequence_of(9, 2, 3, 4, 5)) == []
    cache.check()


def test_one_token_of_a_known_prompt_is_left_to_compute() -> None:
    pool, cache = make_cache()
    table = compute(pool, cache, sequence_of(1, 2, 3, 4))
    assert cache.match(sequence_of(1, 2, 3, 4)) == table[:1]
    assert cache.match(sequence_of(1, 2, 3, 4, 5)) == table
    assert cache.match(sequence_of(1)) == []


def test_blocks_that_are_not_computed_are_not_found() -> None:
    pool, cache = make_cache()
    sequence = sequence_of(1, 2, 3, 4)
    sequence.block_table = pool.try_allocate(2) or []
    sequence.num_computed_tokens = 3
    cache.insert(sequence, 0)
    assert cache.match(sequence_of(1, 2, 3, 4, 5)) == sequence.block_table[:1]


def test_generated_tokens_are_found_in_a_later_prompt() -> None:
    pool, cache = make_cache()
    sequence = sequence_of(1, 2, 3)
    table = compute(pool, cache, sequence)
    sequence.token_ids.append(4)
    sequence.num_computed_tokens = 4
    cache.insert(sequence, 1)
    assert cache.match(sequence_of(1, 2, 3, 4, 5)) == table


def test_an_answer_is_not_remembered_where_prompts_alone_are() -> None:
    pool = BlockPool(10)
    cache = PrefixCache(pool, BLOCK_SIZE, "model", prompts_only=True)
    sequence = sequence_of(1, 2, 3)
    table = compute(pool, cache, sequence)
    sequence.token_ids.append(4)
    sequence.num_computed_tokens = 4
    cache.insert(sequence, 1)
    assert cache.match(sequence_of(1, 2, 3, 4, 5)) == table[:1]


def test_salt_a_never_hits_salt_b() -> None:
    pool, cache = make_cache()
    table = compute(pool, cache, sequence_of(1, 2, 3, salt="a"))
    assert cache.match(sequence_of(1, 2, 3, salt="b")) == []
    assert cache.match(sequence_of(1, 2, 3)) == []
    assert cache.match(sequence_of(1, 2, 3, salt="a")) == table[:1]


def test_block_is_found_while_free_and_no_more_once_handed_out() -> None:
    pool, cache = make_cache(num_blocks=3)
    table = compute(pool, cache, sequence_of(1, 2, 3, 4))
    pool.release(table)
    assert len(cache) == 2
    assert cache.match(sequence_of(1, 2, 3, 4, 5)) == table
    pool.try_allocate(1)
    assert cache.match(sequence_of(1, 2, 3, 4, 5)) == table[:1], "the tail goes first"
    assert cache.counters.num_evictions == 1
    cache.check()


def test_evicted_ancestor_of_a_held_block_ends_the_run_and_its_return_renews_it() -> None:
    pool, cache = make_cache(num_blocks=5)
    first, second = compute(pool, cache, sequence_of(1, 2, 3, 4))
    pool.release([first])  # the second block stays held
    others = pool.try_allocate(3) or []
    assert first in others
    assert cache.match(sequence_of(1, 2, 3, 4, 5)) == []
    pool.release(others)
    again = compute(pool, cache, sequence_of(1, 2, 9))
    assert cache.match(sequence_of(1, 2, 3, 4, 5)) == [again[0], second]
    cache.check()


def test_flush_drops_entries_and_leaves_held_blocks() -> None:
    pool, cache = make_cache()
    sequence = sequence_of(1, 2, 3, 4, 5)
    table = compute(pool, cache, sequence)
    assert cache.flush() == 2
    assert cache.match(sequence_of(1, 2, 3, 4, 5)) == []
    assert pool.num_referenced == 3
    sequence.token_ids.append(6)
    sequence.num_computed_tokens = 6
    cache.insert(sequence, 2)
    cache.check()
    pool.release(table)
    assert cache.match(sequence_of(1, 2, 3, 4, 5, 6, 7)) == [], "the head is unknown"
    pool.check()


def test_equal_content_stays_with_the_first_block() -> None:
    pool, cache = make_cache()
    first = compute(pool, cache, sequence_of(1, 2, 3))
    compute(pool, cache, sequence_of(1, 2, 7, 8))
    assert cache.match(sequence_of(1, 2, 3)) == first[:1]
    assert len(cache) == 2
    cache.check()


def test_chains_that_were_computed_apart_are_one_prefix() -> None:
    pool, cache = make_cache()
    one, two = sequence_of(1, 2, 3), sequence_of(1, 2, 3, 4, 5)
    cache.match(one)
    cache.match(two)  # both have keys of their own before either is computed
    [head, _] = compute(pool, cache, one)
    [_, tail, _] = compute(pool, cache, two)
    assert cache.match(sequence_of(1, 2, 3, 4, 5)) == [head, tail]


def test_collision_of_a_weak_hash_is_a_miss() -> None:
    pool = BlockPool(10)
    cache = PrefixCache(pool, BLOCK_SIZE, "model", hash_bytes=lambda data: b"same")
    table = compute(pool, cache, sequence_of(1, 2, 3))
    assert cache.match(sequence_of(3, 4, 5)) == []
    assert cache.match(sequence_of(1, 2, 9)) == table[:1]
    compute(pool, cache, sequence_of(3, 4, 5))
    assert cache.match(sequence_of(3, 4, 5)) == []
    assert len(cache) == 1
    cache.check()


def test_collision_in_own_tokens_alone_is_a_miss() -> None:
    """Equal tokens after another beginning, with a hash that sees the last token only."""
    pool = BlockPool(10)
    cache = PrefixCache(pool, BLOCK_SIZE, "model", hash_bytes=lambda data: data[-8:])
    table = compute(pool, cache, sequence_of(1, 2, 3, 4))
    assert cache.match(sequence_of(1, 2, 3, 4, 5)) == table
    assert cache.match(sequence_of(9, 2, 3, 4, 5)) == []
    other = compute(pool, cache, sequence_of(7, 8))
    assert cache.match(sequence_of(7, 8, 3, 4, 5)) == other


def test_forgotten_block_is_not_found() -> None:
    pool, cache = make_cache()
    [block, _] = compute(pool, cache, sequence_of(1, 2, 3))
    assert cache.forget(block)
    assert not cache.forget(block)
    assert cache.match(sequence_of(1, 2, 3)) == []


def test_keys_of_a_sequence_are_computed_once() -> None:
    hashed: list[bytes] = []

    def counting_digest(data: bytes) -> bytes:
        hashed.append(data)
        return sha256_digest(data)

    pool = BlockPool(20)
    cache = PrefixCache(pool, BLOCK_SIZE, "model", counting_digest)
    sequence = sequence_of(*range(20))
    for _ in range(3):
        cache.match(sequence)
    compute(pool, cache, sequence)
    assert len(hashed) == 1 + 10, "the root and each full block"


def test_equal_prefixes_share_their_keys() -> None:
    """Memory: a long shared beginning is stored once, not with every request."""
    pool, cache = make_cache(num_blocks=20)
    one, two = sequence_of(1, 2, 3, 4, 5, 6), sequence_of(1, 2, 3, 4, 7, 8, 9)
    compute(pool, cache, one)
    cache.match(two)
    assert two.block_keys[1] is one.block_keys[1]
    assert two.block_keys[2].parent is one.block_keys[1]


# What else decides the content


def test_one_field_of_the_key_changed_is_a_miss() -> None:
    adapter = Adapter("poet", "hash 1")
    pool, cache = make_cache()
    table = compute(pool, cache, sequence_of(1, 2, 3, salt="s", adapter=adapter))
    assert cache.match(sequence_of(1, 2, 3, salt="s", adapter=adapter)) == table[:1]
    for other in (
        sequence_of(1, 2, 3, salt="t", adapter=adapter),
        sequence_of(1, 2, 3, adapter=adapter),
        sequence_of(1, 2, 3, salt="s"),
        sequence_of(1, 2, 3, salt="s", adapter=Adapter("judge", "hash 1")),
        sequence_of(1, 2, 3, salt="s", adapter=Adapter("poet", "hash 2")),
        sequence_of(1, 9, 3, salt="s", adapter=adapter),
    ):
        assert cache.match(other) == []
    other_model = PrefixCache(pool, BLOCK_SIZE, "another model")
    assert other_model.match(sequence_of(1, 2, 3, salt="s", adapter=adapter)) == []


def test_an_adapter_named_like_a_salt_is_not_that_salt() -> None:
    pool, cache = make_cache()
    compute(pool, cache, sequence_of(1, 2, 3, salt="x"))
    assert cache.match(sequence_of(1, 2, 3, adapter=Adapter("x", ""))) == []
    assert cache.match(sequence_of(1, 2, 3, adapter=Adapter("", "x"))) == []


# Retention


def test_blocks_without_a_known_content_are_handed_out_first() -> None:
    pool, cache = make_cache(num_blocks=6)
    table = compute(pool, cache, sequence_of(1, 2, 3, 4))
    pool.release(table)
    fresh = pool.try_allocate(3) or []
    pool.release(fresh)
    assert set(pool.try_allocate(3) or []) == set(fresh), "although released later"
    assert cache.match(sequence_of(1, 2, 3, 4, 5)) == table
    pool.check()


def test_kept_prompts_outlive_others_and_their_answers_do_not() -> None:
    pool, cache = make_cache(num_blocks=9)
    kept = sequence_of(1, 2, keeps=True)
    kept.token_ids += [3, 4]
    kept_table = compute(pool, cache, kept)
    other_table = compute(pool, cache, sequence_of(7, 8, 9, 10))
    pool.release(kept_table)
    pool.release(other_table)
    taken = pool.try_allocate(7) or []
    assert kept_table[0] not in taken
    assert kept_table[1] in taken, "the answer of the kept prompt"
    assert cache.match(sequence_of(1, 2, 3)) == kept_table[:1]
    pool.check()


def test_kept_blocks_beyond_half_of_the_pool_go_first() -> None:
    pool, cache = make_cache(num_blocks=7)
    old = compute(pool, cache, sequence_of(1, 2, 3, 4, 5, 6, 7, 8, keeps=True))
    young = compute(pool, cache, sequence_of(9, 10))
    pool.release(old)
    pool.release(young)
    taken = pool.try_allocate(2) or []
    assert old[-1] in taken
    assert young[0] not in taken, "the free kept blocks were four of six"
    pool.check()


def test_a_hit_of_a_keeping_request_keeps_what_others_computed() -> None:
    pool, cache = make_cache(num_blocks=6)
    table = compute(pool, cache, sequence_of(1, 2, 3, 4))
    keeper = sequence_of(1, 2, 3, 4, 5, keeps=True)
    keeper.block_table = table
    cache.use(keeper, 2)
    pool.release(table)
    assert table[0] not in (pool.try_allocate(4) or [])


# Counters


def test_hits_misses_evictions_and_flushes_are_counted() -> None:
    pool, cache = make_cache(num_blocks=3)
    pool.release(compute(pool, cache, sequence_of(1, 2, 3, 4)))
    cache.use(sequence_of(1, 2, 3, 4, 5), 4)
    cache.use(sequence_of(8, 9), 0)
    pool.try_allocate(1)
    cache.flush()
    assert cache.counters == PrefixCacheCounters(
        num_hits=1,
        num_misses=1,
        num_hit_tokens=4,
        num_asked_tokens=7,
        num_evictions=1,
        num_flushed=1,
    )
