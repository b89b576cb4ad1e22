"""Random request streams against pool, prefix cache and scheduler.

A simulated KV pool remembers which token history was written to every slot. Each step checks
that a row's past is exactly its own history, whatever was shared, copied, evicted or computed
again. Now and then a second scheduler, which never looks ahead, must plan the same.
`test_mutations.py` proves that the machine notices when a rule is broken.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Sequence as Rows
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from omruntime.blocks.block_key import sha256_digest
from omruntime.blocks.block_pool import BlockPool
from omruntime.blocks.prefix_cache import PrefixCache
from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.costs.cost_table import CostTable
from omruntime.errors import OverloadedError, RequestError
from omruntime.limits import EngineLimits
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.phase_policy import Targets
from omruntime.scheduling.scheduler import Scheduler, SchedulerOptions
from omruntime.scheduling.turn import Scheduling, Urgency
from omruntime.sequence import FinishReason, Request, Sequence, SequenceStatus
from omruntime.step import (
    RowPlan,
    RowResult,
    SampledToken,
    SamplingFailure,
    ScoredToken,
    StepPlan,
    TokenLogprobs,
)

EOS, STOP = 8, 9
MAX_MODEL_LEN = 20
POISON = -1
# Of the processes; a second scheduler takes time.
TWIN_SHARE = 0.1


class SimulatedKV:
    """What every slot holds: the id of a token history, equal only for equal histories."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._slots: dict[tuple[int, int], int] = {}
        self._history_ids: dict[tuple[object, int], int] = {}

    def history(self, sequence: Sequence) -> list[int]:
        """For each known position the id of salt and tokens up to and with it."""
        ids: list[int] = []
        parent: object = sequence.request.cache_salt
        for token_id in sequence.token_ids:
            parent = self._history_ids.setdefault((parent, token_id), len(self._history_ids))
            ids.append(parent)
        return ids

    def read(self, block_table: list[int], num_tokens: int) -> list[int]:
        return [self._slots.get(self._slot(block_table, p), POISON) for p in range(num_tokens)]

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        sources, targets = [s for s, _ in copies], [t for _, t in copies]
        assert len(set(targets)) == len(targets), "one block is the target of two copies"
        assert not set(sources) & set(targets), "a block is source and target"
        for source, target in copies:
            for offset in range(self.block_size):
                self._slots[target, offset] = self._slots.get((source, offset), POISON)

    def write(self, row: RowPlan, values: list[int]) -> None:
        for position, value in enumerate(values, row.start):
            self._slots[self._slot(row.sequence.block_table, position)] = value

    def _slot(self, block_table: list[int], position: int) -> tuple[int, int]:
        return block_table[position // self.block_size], position % self.block_size


def make_table(block_size: int, prefill: list[tuple[int, int]], max_rows: int) -> BucketTable:
    """Buckets over half and over all of the longest past."""
    longest = -(-MAX_MODEL_LEN // block_size)
    shapes = [(Phase.PREFILL, *shape) for shape in prefill]
    shapes += [(Phase.DECODE, 1, 1), (Phase.DECODE, max_rows, 1)]
    return BucketTable(
        (Bucket(*shape, past_blocks) for shape in shapes for past_blocks in (1, longest)),
        block_size,
    )


class TwinScheduler(Scheduler):
    """Asks a twin the same, but never to look ahead, and expects the same plans of it."""

    def __init__(self, twin: Scheduler, *args: Any) -> None:
        super().__init__(*args)
        self._twin = twin
        self._twins_plan: StepPlan | None = None

    def add(self, request: Request, submitted_at: float = 0.0) -> Sequence:
        sequence = super().add(request, submitted_at)
        self._twin.add(request, submitted_at)
        return sequence

    def schedule(self, now: float = 0.0) -> StepPlan | None:
        plan, self._twins_plan = super().schedule(now), self._twin.schedule(now)
        assert self.told(plan) == self.told(self._twins_plan), "looking ahead changed a plan"
        return plan

    def update(self, plan: StepPlan, results: Rows[RowResult]) -> list[Sequence]:
        assert self._twins_plan is not None
        self._twin.update(self._twins_plan, results)
        return super().update(plan, results)

    def fail(self, plan: StepPlan) -> list[Sequence]:
        assert self._twins_plan is not None
        self._twin.fail(self._twins_plan)
        return super().fail(plan)

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> Sequence | None:
        self._twin.abort(request_id, reason)
        return super().abort(request_id, reason)

    def expire(self, now: float) -> list[Sequence]:
        self._twin.expire(now)
        return super().expire(now)

    def told(self, plan: StepPlan | None) -> object:
        """All that a plan says, and what it may have changed."""
        if plan is None:
            return None
        rows = [(replace(row, sequence=None), row.sequence) for row in plan.rows]  # type: ignore[arg-type]
        told = [(row, s.request_id, s.block_table, s.urgency, s.idle_since) for row, s in rows]
        return plan.bucket, plan.block_copies, told


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, steps, failures, aborts and flushes in any order."""

    @initialize(
        seed=st.integers(0, 2**20),
        block_size=st.sampled_from([1, 2, 4]),
        prefill=st.sampled_from([[(1, 8)], [(1, 4), (2, 4)], [(1, 2), (1, 6), (3, 6)]]),
        max_rows=st.integers(1, 4),
        cache=st.sampled_from(["none", "sha256", "weak"]),
        costs=st.sampled_from(["prior", "random", "deterministic"]),
    )
    def start(
        self,
        seed: int,
        block_size: int,
        prefill: list[tuple[int, int]],
        max_rows: int,
        cache: str,
        costs: str,
    ) -> None:
        self.random = random.Random(seed)
        # From just enough for one sequence to enough for a few.
        num_blocks = -(-MAX_MODEL_LEN // block_size) + 1 + self.random.randrange(5)
        self.limits = EngineLimits(
            num_blocks=num_blocks,
            max_num_seqs=self.random.randint(2, 7),
            max_model_len=MAX_MODEL_LEN,
            max_chunk_tokens=self.random.choice([2, 4, 8]),
            max_queued_requests=6,
            max_queued_tokens=60,
        )
        self.cache_kind, self.table = cache, make_table(block_size, prefill, max_rows)
        self.now = 100.0
        self.scheduler_options = self.options(self.table, costs)
        self.num_requests = 0
        self.begin()

    def begin(self) -> None:
        """What a process has when it starts: an empty pool, and nothing in it."""
        self.kv = SimulatedKV(self.table.block_size)
        self.pool, self.cache = self.empty_pool()
        self.caches = [self.cache]
        parts = (self.limits, self.table, self.pool, self.cache, [EOS], self.scheduler_options)
        if self.random.random() < TWIN_SHARE:
            pool, cache = self.empty_pool()
            self.caches.append(cache)
            twin = Scheduler(self.limits, self.table, pool, cache, [EOS], self.scheduler_options)
            self.scheduler: Scheduler = TwinScheduler(twin, *parts)
        else:
            self.scheduler = Scheduler(*parts)
        self.live: dict[str, Sequence] = {}
        self.answers: dict[str, list[int]] = {}
        self.scored: dict[str, list[int]] = {}
        self.admitted: set[str] = set()
        self.recent: deque[tuple[str, list[int]]] = deque(maxlen=6)

    def empty_pool(self) -> tuple[BlockPool, PrefixCache | None]:
        pool = BlockPool(self.limits.num_blocks)
        if self.cache_kind == "none":
            return pool, None
        weak = self.cache_kind == "weak"
        digest = (lambda data: sha256_digest(data)[:1]) if weak else sha256_digest
        return pool, PrefixCache(pool, self.table.block_size, "model", digest)

    def options(self, table: BucketTable, costs: str) -> SchedulerOptions:
        """Costs of any size, so that no rule leans on what is usually cheap."""
        measured = CostTable(table, table.block_size)
        if costs == "random":
            for bucket in table:
                measured.measure(bucket, 10.0 ** self.random.uniform(-3, 0))
            measured.switch_s = self.random.choice([0.0, 0.0, 0.3])
        targets = Targets(self.random.choice([0.01, 1, 100]), self.random.choice([0.001, 0.1, 10]))
        return SchedulerOptions(measured, targets, deterministic=costs == "deterministic")

    @rule(num_shared=st.integers(0, 10), num_own=st.integers(0, 4), salt=st.sampled_from(["", "a"]))
    def arrive(self, num_shared: int, num_own: int, salt: str) -> None:
        """One request; beginnings are shared, single tokens come from a small alphabet."""
        own = [self.random.randrange(3) for _ in range(num_own)]
        self.add([0, 1, 2, 0, 0, 1, 1, 2, 2, 0][:num_shared] + own, salt, None)

    @rule(num_prompt=st.integers(1, 9), num_siblings=st.integers(1, 4))
    def arrive_as_group(self, num_prompt: int, num_siblings: int) -> None:
        """Several answers to one prompt, the first of them leading."""
        prompt = [self.random.randrange(3) for _ in range(num_prompt)]
        leader_id = self.add(prompt, "", None)
        for _ in range(num_siblings):
            self.add(prompt, "", leader_id)

    @rule()
    def follow_up(self) -> None:
        """A running answer so far comes back as a prompt."""
        running = [s for s in self.live.values() if s.status is SequenceStatus.RUNNING]
        if running:
            sequence = self.random.choice(running)
            salt = sequence.request.cache_salt
            self.add([*sequence.token_ids, self.random.randrange(3)], salt, None)

    @rule(num_prompt=st.integers(2, 9), num_steps=st.integers(2, 9))
    def leader_leaves(self, num_prompt: int, num_steps: int) -> None:
        """The first of a group goes as soon as another one holds its blocks."""
        prompt = [self.random.randrange(3) for _ in range(num_prompt)]
        leader_id = self.add(prompt, "", None)
        for _ in range(num_steps):
            self.run_step()
        self.add(prompt, "", leader_id)
        # Another prompt's prefill leaves the sharer without a step of its own so far.
        self.add([2, 1, 0, 2], "a", None)
        self.run_step()
        leader = self.live.get(leader_id)
        if leader is not None and self.shares_a_block(leader):
            self.abort(leader, None)

    @rule(num_steps=st.integers(1, 5))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.run_step()

    @rule()
    def run_long(self) -> None:
        """Long enough for answers to outgrow the pool."""
        for _ in range(20):
            self.run_step()

    @precondition(lambda self: self.live)
    @rule(kind=st.sampled_from(["step", "sampling", "abort", "abort sharer", "abort in flight"]))
    def mishap(self, kind: str) -> None:
        if kind == "step":
            self.step_fails()
        elif kind == "sampling":
            self.sampling_fails()
        else:
            plan = self.plan_step() if kind == "abort in flight" else None
            sharers = [s for s in self.live.values() if self.shares_a_block(s)]
            if kind == "abort sharer" and sharers:
                self.abort(min(sharers, key=lambda s: s.arrival), plan)
            else:
                self.abort(self.random.choice(list(self.live.values())), plan)

    @precondition(lambda self: self.live)
    @rule()
    def process_restarts(self) -> None:
        """All is lost, now and then; some of the callers ask again, by the same ids."""
        if self.random.random() < 0.15:
            lost = list(self.live.values())
            self.begin()
            for sequence in self.random.sample(lost, len(lost) // 2):
                self.submit(sequence.request)

    def shares_a_block(self, sequence: Sequence) -> bool:
        return any(self.pool.reference_count(b) > 1 for b in sequence.block_table)

    def step_fails(self) -> None:
        """The device dies half way: the written slots are undefined."""
        plan = self.plan_step()
        self.kv.copy_blocks(plan.block_copies)
        for row in plan.rows:
            if not row.is_computed:
                self.kv.write(row, [POISON] * row.num_tokens)
        failed = self.scheduler.fail(plan)
        assert failed == list(dict.fromkeys(row.sequence for row in plan.rows))
        for sequence in failed:
            self.expect_finished(sequence, FinishReason.ERROR)

    def sampling_fails(self) -> None:
        """One row has no next token; the others go on."""
        plan = self.plan_step()
        self.execute(plan)
        sampled = self.sample(plan)
        index = self.random.randrange(len(plan.rows))
        sampled[index] = SamplingFailure("not a number")
        self.take_over(plan, sampled)
        assert plan.rows[index].sequence.finish_reason is FinishReason.ERROR

    def abort(self, sequence: Sequence, plan: StepPlan | None) -> None:
        """End one sequence, before or within the step of `plan`; the second time is no use."""
        assert self.scheduler.abort(sequence.request_id) is sequence
        self.expect_finished(sequence, FinishReason.ABORT)
        assert self.scheduler.abort(sequence.request_id) is None
        if plan is not None:
            self.scheduler.check()
            self.execute(plan)
            self.take_over(plan, self.sample(plan))

    @rule(seconds=st.sampled_from([0.1, 1.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        """Waiters age, and what is due ends wherever it is."""
        self.now += seconds
        self.expire()

    def expire(self) -> None:
        due = [s for s in self.live.values() if self.is_due(s)]
        expired = self.scheduler.expire(self.now)
        assert sorted(s.arrival for s in expired) == sorted(s.arrival for s in due)
        for sequence in expired:
            assert sequence.finish_detail
            self.expect_finished(sequence, FinishReason.ABORT)

    def is_due(self, sequence: Sequence) -> bool:
        scheduling = sequence.request.scheduling
        if scheduling.deadline is not None and self.now >= scheduling.deadline:
            return True
        if scheduling.queue_timeout_s is None or sequence.request_id in self.admitted:
            return False
        return self.now >= sequence.submitted_at + scheduling.queue_timeout_s

    @rule()
    def flush(self) -> None:
        if self.random.random() < 0.3:
            for cache in self.caches:
                if cache is not None:
                    cache.flush()

    @invariant()
    def holds_together(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check()
        assert self.scheduler.num_running + self.scheduler.num_waiting == len(self.live)
        for request_id, sequence in self.live.items():
            answer = sequence.token_ids[sequence.num_prompt_tokens :]
            assert answer == self.answers[request_id], "tokens were lost or made up"
            assert sequence.num_scored >= len(self.scored[request_id]), "a score came twice"

    @invariant()
    def cache_tells_the_truth(self) -> None:
        """What it would give to anyone is what was computed for exactly these tokens."""
        if getattr(self, "cache", None) is None:
            return
        for salt, token_ids in self.recent:
            probe = Sequence.of(Request("probe", (*token_ids, 0), SamplingParams(), salt), 0)
            block_ids = self.cache.match(probe)
            num_tokens = len(block_ids) * self.kv.block_size
            held = self.kv.read(block_ids, num_tokens)
            assert held == self.kv.history(probe)[:num_tokens], "the cache names a changed block"

    def teardown(self) -> None:
        """Without arrivals everything finishes, in steps bounded by the tokens that are left."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(8 * MAX_MODEL_LEN * (len(self.live) + 1)):
            if not self.live:
                break
            self.run_step()
            self.now += 0.5
        assert not self.live, "requests starve"
        assert self.scheduler.schedule(self.now) is None
        assert self.pool.num_referenced == 0
        self.scheduler.check()

    def add(self, prompt: list[int], salt: str, leader_id: str | None) -> str:
        self.num_requests += 1
        request_id = f"r{self.num_requests}"
        is_scored = self.random.random() < 0.3
        lengths = [None, None, 1, 5, 12] + [0, 0] * is_scored
        params = SamplingParams(
            max_new_tokens=self.random.choice(lengths),
            ignore_eos=self.random.random() < 0.5,
            stop_token_ids=(STOP,),
            prompt_logprobs=0 if is_scored else None,
        )
        request = Request(request_id, tuple(prompt), params, salt, leader_id, self.wishes())
        score_from = self.random.choice([0, 0, len(prompt) // 2, max(0, len(prompt) - 1)])
        bypasses = self.random.random() < 0.1
        self.submit(replace(request, score_from=score_from, bypasses_prefix_cache=bypasses))
        return request_id

    def submit(self, request: Request) -> None:
        try:
            self.live[request.request_id] = self.scheduler.add(request, self.now)
            self.answers[request.request_id] = []
            self.scored[request.request_id] = []
        except RequestError:
            most = MAX_MODEL_LEN if request.params.max_new_tokens == 0 else MAX_MODEL_LEN - 1
            assert not 0 < len(request.prompt_token_ids) <= most
        except OverloadedError:
            assert self.scheduler.num_waiting > 0

    def wishes(self) -> Scheduling:
        choose = self.random.choice
        return Scheduling(
            urgency=choose([Urgency.NORMAL, *Urgency]),
            tenant=choose(["", "", "a", "b"]),
            tenant_weight=choose([1.0, 3.0]),
            queue_timeout_s=choose([None, None, None, 0.5, 20.0]),
            deadline=choose([None, None, None, self.now + 2.0]),
            keeps_prefix=choose([False, False, True]),
        )

    def run_step(self) -> None:
        if self.live:
            plan = self.plan_step()
            self.execute(plan)
            self.take_over(plan, self.sample(plan))
        else:
            assert self.scheduler.schedule(self.now) is None

    def plan_step(self) -> StepPlan:
        before = {
            s: s.num_preemptions for s in self.live.values() if s.status is SequenceStatus.RUNNING
        }
        plan = self.scheduler.schedule(self.now)
        assert plan is not None, "idle although requests are live"
        self.scheduler.check()
        self.admitted |= {
            s.request_id
            for s in self.live.values()
            if s.status is SequenceStatus.RUNNING or s.num_preemptions
        }
        preempted = [s.rank for s, count in before.items() if s.num_preemptions > count]
        kept = [s.rank for s, count in before.items() if s.num_preemptions == count]
        assert not preempted or not kept or min(preempted) > max(kept), "wrong one preempted"
        num_tokens = max(row.num_tokens for row in plan.rows)
        past_blocks = -(-max(row.start for row in plan.rows) // self.kv.block_size)
        assert plan.bucket.covers(len(plan.rows), num_tokens, past_blocks)
        self.scheduler.foresee(plan)
        return plan

    def execute(self, plan: StepPlan) -> None:
        """Read every past, then write: rows of one step do not see each other."""
        self.kv.copy_blocks(plan.block_copies)
        rows = [r for r in plan.rows if r.sequence.status is SequenceStatus.RUNNING]
        values = []
        for row in rows:
            history = self.kv.history(row.sequence)
            past = self.kv.read(row.sequence.block_table, row.start)
            assert past == history[: row.start], f"{row.sequence.request_id} reads a foreign past"
            values.append(history[row.start : row.start + row.num_tokens])
            self.check_row(row)
        for row, new in zip(rows, values, strict=True):
            if row.is_computed:
                assert new == self.kv.read(row.sequence.block_table, row.start + 1)[row.start :]
            else:
                self.kv.write(row, new)

    def check_row(self, row: RowPlan) -> None:
        """An answer begins after its prompt's scores, and never where none is wanted."""
        sequence = row.sequence
        is_end = row.start + row.num_tokens == len(sequence.token_ids)
        is_told = len(self.scored[sequence.request_id]) == self.num_scores(sequence)
        is_wanted = sequence.params.max_new_tokens != 0
        if row.is_computed:
            assert row.start < sequence.num_prompt_tokens == len(sequence.token_ids)
            assert row.num_tokens == 1
            assert row.samples == is_end
            assert is_wanted or not row.samples
        else:
            # A prompt that is scored is sampled by a row of its own, also when no score is left.
            is_scored = sequence.params.prompt_logprobs is not None
            is_first = (
                is_scored and sequence.num_output_tokens == 0 < sequence.num_prompt_tokens - 1
            )
            assert row.samples == (is_end and is_wanted and not is_first)
            assert not row.samples or is_told

    def num_scores(self, sequence: Sequence) -> int:
        """Positions whose logprobs the request wants."""
        if sequence.params.prompt_logprobs is None:
            return 0
        return sequence.num_prompt_tokens - max(1, sequence.request.score_from)

    def sample(self, plan: StepPlan) -> list[RowResult]:
        # Ends are rare enough that answers outgrow the pool.
        token_ids = self.random.choices([0, 1, 2, EOS, STOP], [14, 14, 14, 1, 1], k=len(plan.rows))
        score = ScoredToken(TokenLogprobs(-1.0, ()), 1)
        return [
            SampledToken(token_id) if row.samples else score if row.scores else None
            for row, token_id in zip(plan.rows, token_ids, strict=True)
        ]

    def take_over(self, plan: StepPlan, sampled: list[RowResult]) -> None:
        expected: list[tuple[Sequence, FinishReason]] = []
        for row, token in zip(plan.rows, sampled, strict=True):
            sequence = row.sequence
            if sequence.status is SequenceStatus.FINISHED or sequence in dict(expected):
                continue
            if isinstance(token, ScoredToken):
                scored = self.scored[sequence.request_id]
                scored.append(row.start + 1)
                first = max(1, sequence.request.score_from)
                assert scored == list(range(first, first + len(scored))), "not in turn"
            if isinstance(token, SampledToken):
                self.answers[sequence.request_id].append(token.token_id)
            reason = self.naive_reason(row, token)
            if reason is not None:
                expected.append((sequence, reason))
        assert self.scheduler.update(plan, sampled) == [s for s, _ in expected]
        for sequence, reason in expected:
            self.expect_finished(sequence, reason)

    def naive_reason(self, row: RowPlan, token: RowResult) -> FinishReason | None:
        sequence = row.sequence
        if isinstance(token, SamplingFailure):
            return FinishReason.ERROR
        if not isinstance(token, SampledToken):
            end = max(sequence.num_computed_tokens, row.start + row.num_tokens)
            is_told = len(self.scored[sequence.request_id]) == self.num_scores(sequence)
            is_done = end >= sequence.num_prompt_tokens and is_told
            return FinishReason.LENGTH if is_done and sequence.params.max_new_tokens == 0 else None
        params, answer = sequence.params, self.answers[sequence.request_id]
        if token.token_id == STOP or (token.token_id == EOS and not params.ignore_eos):
            return FinishReason.STOP
        most = params.max_new_tokens or MAX_MODEL_LEN
        full = sequence.num_prompt_tokens + len(answer) == MAX_MODEL_LEN
        return FinishReason.LENGTH if full or len(answer) == most else None

    def expect_finished(self, sequence: Sequence, reason: FinishReason) -> None:
        assert sequence.status is SequenceStatus.FINISHED
        assert sequence.finish_reason is reason
        assert not sequence.block_table
        self.recent.append((sequence.request.cache_salt, sequence.token_ids))
        if reason is FinishReason.LENGTH:
            assert len(self.scored[sequence.request_id]) == self.num_scores(sequence)
        del self.live[sequence.request_id], self.answers[sequence.request_id]
        del self.scored[sequence.request_id]


# 20,000 rules for every change, ten times as many for `make soak`.
NUM_EXAMPLES = 400 * int(os.environ.get("SOAK_FACTOR", "1"))
MACHINE_SETTINGS = settings(
    max_examples=NUM_EXAMPLES,
    stateful_step_count=50,
    # Shrinking a failure takes far longer than finding it, and the seed makes it come again.
    phases=[HypothesisPhase.generate],
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.timeout(300 * int(os.environ.get("SOAK_FACTOR", "1")))
def test_no_stream_of_requests_breaks_the_scheduler() -> None:
    run_state_machine_as_test(SchedulerMachine, settings=MACHINE_SETTINGS)
