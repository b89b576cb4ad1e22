"""Prefill against decode: each rule by an example, and nobody starves whatever the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.costs.cost_table import CostTable
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.output_lengths import OutputLengths
from omruntime.scheduling.phase_policy import PhasePolicy, PhaseSnapshot, Targets, choose_phase
from omruntime.scheduling.row_choice import RowChooser
from omruntime.scheduling.turn import Scheduling
from omruntime.sequence import Request, Sequence

# Sixteen rows at 50 ms a step, a chunk of 80 ms that brings one row of a hundred tokens.
NOW = PhaseSnapshot(
    num_decode_rows=16,
    decode_s=0.05,
    prefill_s=0.08,
    unlocked_rows=1.0,
    num_expected_tokens=100.0,
    num_decoded_since=0,
    debt_s=0.0,
    itl_target_s=0.1,
    ttft_slack_s=1.0,
)
CHUNK, STEP = Bucket(Phase.PREFILL, 1, 16, 8), Bucket(Phase.DECODE, 4, 1, 8)


@pytest.mark.parametrize(
    ("changed", "phase"),
    [
        ({}, Phase.PREFILL),  # a hundred tokens unlocked, 16 rows times 1.6 steps held up
        ({"num_expected_tokens": 10.0}, Phase.DECODE),
        ({"num_expected_tokens": 10.0, "num_decode_rows": 4}, Phase.PREFILL),
        ({"unlocked_rows": 0.1}, Phase.DECODE),
        ({"unlocked_rows": 0.1, "num_decoded_since": 16}, Phase.PREFILL),
        ({"unlocked_rows": 0.1, "ttft_slack_s": -0.1}, Phase.PREFILL),  # about to be late
        ({"debt_s": 0.05}, Phase.DECODE),  # another chunk would pass the target
        ({"debt_s": 0.05, "ttft_slack_s": -9.0}, Phase.DECODE),  # late as it is
        ({"debt_s": 0.01}, Phase.PREFILL),
        ({"prefill_s": 5.0, "num_expected_tokens": 1e6}, Phase.PREFILL),  # longer than any target
    ],
)
def test_choice(changed: dict[str, float], phase: Phase) -> None:
    assert choose_phase(replace(NOW, **changed)) is phase  # type: ignore[arg-type]


def make_policy(prefill_s: float, decode_s: float, targets: Targets) -> PhasePolicy:
    table = BucketTable([CHUNK, STEP], 16)
    costs = CostTable(table, 16)
    costs.measure(CHUNK, prefill_s)
    costs.measure(STEP, decode_s)
    return PhasePolicy(RowChooser(table, 16, costs), OutputLengths(), targets)


def sequence_of(num_tokens: int, computed: int, scheduling: Scheduling | None = None) -> Sequence:
    request = Request(
        "r", (1,) * num_tokens, SamplingParams(), "", None, scheduling or Scheduling()
    )
    sequence = Sequence.of(request, 1)
    sequence.num_computed_tokens = computed
    return sequence


seconds = st.floats(1e-4, 10)


@given(prefill_s=seconds, decode_s=seconds, ttft_s=seconds, itl_s=seconds, rows=st.integers(1, 4))
def test_neither_phase_starves_under_constant_load_of_the_other(
    prefill_s: float, decode_s: float, ttft_s: float, itl_s: float, rows: int
) -> None:
    """Prompts and answers without end, on a clock that follows the costs."""
    policy = make_policy(prefill_s, decode_s, Targets(ttft_s, itl_s))
    ready, unready = [sequence_of(5, 4) for _ in range(rows)], [sequence_of(90, 0)]
    now, phases = 0.0, []
    # A chunk that stalls as many tokens as it is worth steps must have come by then.
    patience = 8 + 2 * int(max(prefill_s / decode_s, decode_s / prefill_s, itl_s / prefill_s))
    if patience > 300:
        return  # proves no more and takes long
    for _ in range(patience):
        phase = policy.next_phase(ready, unready, now)
        is_prefill = phase is Phase.PREFILL
        cost = prefill_s if is_prefill else decode_s
        policy.ran(phase, 1 if is_prefill else rows, cost, ready)
        now += cost
        phases.append(phase)
    assert set(phases) == set(Phase)


@given(prefill_s=seconds, decode_s=seconds, itl_s=seconds)
def test_answers_are_never_stalled_beyond_their_target_and_one_chunk(
    prefill_s: float, decode_s: float, itl_s: float
) -> None:
    policy = make_policy(prefill_s, decode_s, Targets(1e-9, itl_s))
    ready, unready = [sequence_of(5, 4)], [sequence_of(90, 0)]
    stalled_s = 0.0
    for step in range(60):
        phase = policy.next_phase(ready, unready, 1.0 + step)
        is_prefill = phase is Phase.PREFILL
        policy.ran(phase, 1, prefill_s if is_prefill else decode_s, ready)
        stalled_s = stalled_s + prefill_s if is_prefill else 0.0
        assert stalled_s <= max(itl_s, prefill_s) * (1 + 1e-9)


def test_one_kind_alone_has_its_step() -> None:
    policy = make_policy(1.0, 0.1, Targets())
    assert policy.next_phase([sequence_of(5, 4)], [], 0.0) is Phase.DECODE
    assert policy.next_phase([], [sequence_of(90, 0)], 0.0) is Phase.PREFILL


def test_a_request_s_own_targets_count() -> None:
    ready, late = sequence_of(5, 4), sequence_of(90, 0, Scheduling(ttft_target_s=0.01))
    policy = make_policy(50.0, 0.1, Targets(1000.0, 1000.0))
    assert policy.next_phase([ready], [sequence_of(90, 0)], 0.0) is Phase.DECODE
    assert policy.next_phase([ready], [late], 0.0) is Phase.PREFILL
    hasty = sequence_of(5, 4, Scheduling(itl_target_s=0.01))
    unready = [sequence_of(90, 0)]
    assert policy.chunk_budget_s([ready, hasty], unready, 0.0) == 0.01
    assert policy.chunk_budget_s([], unready, 0.0) == float("inf")


def test_chunks_are_long_where_a_prompt_would_else_be_late() -> None:
    """64 tokens want four short chunks of 0.08 s, and decode steps between them."""
    long, itl_s = Bucket(Phase.PREFILL, 1, 64, 8), 0.1
    table = BucketTable([CHUNK, long, STEP], 16)
    costs = CostTable(table, 16)
    for bucket, cost_s in ((CHUNK, 0.08), (long, 0.24), (STEP, 0.05)):
        costs.measure(bucket, cost_s)
    targets = Targets(ttft_s=1.0, itl_s=itl_s)
    policy = PhasePolicy(RowChooser(table, 64, costs), OutputLengths(), targets)
    ready, unready = [sequence_of(5, 4)], [sequence_of(64, 0)]
    # A decode step of 0.05 s makes up for 0.05 s: prefill takes twice its own time.
    late_from = 1.0 - 2 * 4 * 0.08
    assert policy.chunk_budget_s(ready, unready, late_from - 0.01) == itl_s
    assert policy.chunk_budget_s(ready, unready, late_from + 0.01) == float("inf")


def test_a_preempted_answer_is_not_late_for_its_first_token() -> None:
    policy = make_policy(50.0, 0.1, Targets(0.001, 1000.0))
    preempted = sequence_of(90, 0)
    preempted.token_ids.append(7)
    assert policy.next_phase([sequence_of(5, 4)], [preempted], 99.0) is Phase.DECODE
