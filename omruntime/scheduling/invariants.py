"""Invariants: what must hold between pool, prefix cache, queue and sequences after every step.

Owns the checks alone. What happens to the sequences that break one is the scheduler's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from omruntime.blocks.block_pool import NULL_BLOCK, BlockPool
from omruntime.scheduling.shared_prefill import SharedPrefill
from omruntime.sequence import Sequence, SequenceStatus
from omruntime.step import StepPlan


def check_sequences(
    live: Mapping[str, Sequence],
    running: Mapping[str, Sequence],
    waiting: Collection[Sequence],
) -> None:
    """Assert that every live sequence either runs or waits, and that no waiter holds anything."""
    assert live == dict(running) | {s.request_id: s for s in waiting}, "a live request is lost"
    assert len(running) + len(waiting) == len(live), "a sequence runs and waits"
    for sequence in waiting:
        assert sequence.status is SequenceStatus.WAITING
        assert not sequence.block_table, f"{sequence.request_id} waits and holds blocks"
        assert sequence.num_computed_tokens == 0


def check_blocks(running: Collection[Sequence], pool: BlockPool) -> None:
    """Assert that block tables and reference counts agree."""
    held = Counter(b for s in running for b in s.block_table)
    assert held[NULL_BLOCK] == 0, "a block table holds the null block"
    assert len(held) == pool.num_referenced, "a block is held by no sequence"
    for block_id, count in held.items():
        assert pool.reference_count(block_id) == count, f"block {block_id} is miscounted"


def check_prefills(shared_prefill: SharedPrefill, running: Collection[Sequence]) -> None:
    """Assert that nobody waits for a prefill that is not under way."""
    num_prefilling = sum(s.num_computed_tokens < s.num_prompt_tokens for s in running)
    assert len(shared_prefill) <= num_prefilling, "a prefill is shared that nobody does"


def check_running(sequence: Sequence, plan: StepPlan | None, block_size: int) -> None:
    """Assert that a running sequence has work to do and exactly the blocks of what it computed.

    Args:
        plan: The step in flight, whose rows already have the blocks that they will write.
    """
    name = sequence.request_id
    assert sequence.status is SequenceStatus.RUNNING, f"{name} runs and is not running"
    assert sequence.num_pending_tokens >= 1 or sequence.is_scoring, f"{name} has nothing to do"
    assert sequence.num_output_tokens == 0 or not sequence.num_unscored, f"{name}: not in turn"
    end = sequence.num_computed_tokens
    for row in () if plan is None else plan.rows:
        if row.sequence is sequence and not row.is_computed:
            end = row.start + row.num_tokens
    num_blocks = -(-end // block_size)
    assert len(sequence.block_table) == num_blocks, f"{name}: wrong table length"
    assert len(set(sequence.block_table)) == num_blocks, f"{name}: block twice"


def suspects(running: Collection[Sequence], pool: BlockPool, block_size: int) -> list[Sequence]:
    """The running sequences whose own state or blocks break an invariant, between two steps."""
    held = Counter(b for s in running for b in s.block_table)
    return [s for s in running if _is_broken(s, held, pool, block_size)]


def _is_broken(sequence: Sequence, held: Counter[int], pool: BlockPool, block_size: int) -> bool:
    try:
        check_running(sequence, None, block_size)
    except AssertionError:
        return True
    table = sequence.block_table
    if not all(NULL_BLOCK < block_id < pool.num_blocks for block_id in table):
        return True
    # Counted too low, a block may have been handed out again and written by somebody else.
    return any(pool.reference_count(block_id) < held[block_id] for block_id in table)
