"""Scheduler: which sequences compute what in the next step.

Owns the course of a step: admit, choose the phase, choose the rows, give them blocks, take over
the result. Each choice has its module: `entrance.py` who is admitted, `phase_policy.py` prefill or
decode, `row_choice.py` chunks and buckets, `step_blocks.py` blocks; the transitions themselves are
`lifecycle.py`'s. The executor is unknown here, both speak `StepPlan`.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

from omruntime.blocks.block_pool import BlockPool
from omruntime.blocks.prefix_cache import PrefixCache
from omruntime.blocks.step_blocks import StepBlocks
from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.costs.cost_table import CostTable
from omruntime.costs.switching import BucketChoice
from omruntime.limits import EngineLimits
from omruntime.scheduling.admission import Admission
from omruntime.scheduling.ageing import Ageing
from omruntime.scheduling.entrance import Entrance
from omruntime.scheduling.finish import finish_reason
from omruntime.scheduling.foresight import ForeseenStep, Foresight
from omruntime.scheduling.lifecycle import Lifecycle
from omruntime.scheduling.phase_policy import ChoosePhase, PhasePolicy, Targets, choose_phase
from omruntime.scheduling.pinned import pin_buckets
from omruntime.scheduling.row_choice import RowChooser, bucket_phase
from omruntime.scheduling.waiting_queue import WaitingQueue
from omruntime.sequence import FinishReason, Request, Sequence, SequenceStatus
from omruntime.step import RowPlan, RowResult, SampledToken, SamplingFailure, StepPlan


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """How to choose among what is possible.

    Attributes:
        costs: What buckets take; None goes by padded work.
        deterministic: One bucket for each phase, see `pinned.py` and `RowChooser`.
        choose_phase: The policy, for comparisons.
    """

    costs: CostTable | None = None
    targets: Targets = field(default_factory=Targets)
    deterministic: bool = False
    choose_phase: ChoosePhase = choose_phase


class Scheduler:
    """Continuous batching over a block pool; every call is for the engine thread.

    Each plan of `schedule` is answered by one `update` or `fail` before the next. Between
    them `abort` may end any sequence of it. All times are seconds of `time.monotonic`.
    """

    def __init__(
        self,
        limits: EngineLimits,
        table: BucketTable,
        pool: BlockPool,
        cache: PrefixCache | None,
        eos_token_ids: Collection[int],
        options: SchedulerOptions | None = None,
    ) -> None:
        options = options or SchedulerOptions()
        if options.deterministic:
            table = pin_buckets(table, limits)
        self._max_num_seqs = limits.max_num_seqs
        self._block_size = table.block_size
        self._pool = pool
        self._eos_token_ids = frozenset(eos_token_ids)
        queue = WaitingQueue(limits.max_queued_requests, limits.max_queued_tokens)
        self._lifecycle = Lifecycle(pool, cache, table.block_size, queue)
        self._waiting = queue
        self._running = self._lifecycle.running
        self._ageing = Ageing(queue, self._running)
        self._chooser = RowChooser(
            table, limits.max_chunk_tokens, options.costs, options.deterministic
        )
        lengths = self._lifecycle.lengths
        self._policy = PhasePolicy(self._chooser, lengths, options.targets, options.choose_phase)
        self._admission = Admission(pool, cache, self._chooser, lengths, limits.max_model_len)
        self._entrance = Entrance(self._lifecycle, self._admission, pool, limits.max_num_seqs)
        self._blocks = StepBlocks(pool, cache, table.block_size)
        self._foresight = Foresight(self._lifecycle, self._chooser, pool)
        self._in_flight: StepPlan | None = None

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for admission, the preempted included."""
        return len(self._waiting)

    @property
    def num_waiting_tokens(self) -> int:
        """Known tokens of the waiting sequences."""
        return self._waiting.num_tokens

    @property
    def num_preemptions(self) -> int:
        """How often a sequence lost its blocks to others."""
        return self._lifecycle.num_preemptions

    @property
    def num_prefix_hit_tokens(self) -> int:
        """Prompt tokens that the prefix cache saved."""
        return self._lifecycle.num_prefix_hit_tokens

    @property
    def num_quarantined(self) -> int:
        """Sequences that `quarantine` ended."""
        return self._lifecycle.num_quarantined

    def add(self, request: Request, submitted_at: float = 0.0) -> Sequence:
        """Queue a request behind those of its class that came before.

        Raises:
            RequestError: Its id is that of a live request, or it can never run.
            OverloadedError: A queue limit is reached.
        """
        self._lifecycle.require_new(request.request_id)
        self._admission.require_runnable(request)
        num_places = max(0, self._max_num_seqs - len(self._running))
        self._waiting.require_room(len(request.prompt_token_ids), num_places)
        return self._lifecycle.enter(request, submitted_at)

    def require_runnable(self, request: Request) -> None:
        """See `Admission.require_runnable`."""
        self._admission.require_runnable(request)

    def sequences(self) -> list[Sequence]:
        """All live sequences: those that run, then those that wait, in turn."""
        return [*self._running.values(), *self._waiting]

    def live_request_ids(self) -> tuple[str, ...]:
        """The ids of all requests that have not finished."""
        return tuple(self._lifecycle.live)

    def expire(self, now: float) -> list[Sequence]:
        """Finish what has waited or lived too long, with ABORT and a detail; between two steps."""
        return self._lifecycle.expire(now)

    def schedule(self, now: float = 0.0) -> StepPlan | None:
        """Plan the next step and give its rows their blocks; None when nothing is live."""
        assert self._in_flight is None, "the last plan was neither updated nor failed"
        self._lifecycle.now = now
        self._ageing.apply(now)
        if self._entrance.admit_waiting():
            self._waiting.filled()
        foreseen = self._foresight.take()
        if foreseen is not None:
            return self._run_foreseen(foreseen)
        while self._running:
            ready: list[Sequence] = []
            unready: list[Sequence] = []
            for sequence in self._running.values():
                (ready if self._chooser.is_ready(sequence) else unready).append(sequence)
            unready.sort(key=_rank)
            phase = self._policy.next_phase(ready, unready, now)
            if phase is Phase.PREFILL:
                rows = self._prompt_rows(unready, ready)
            else:
                rows = self._decode_rows(ready, unready)
            # No rows: those chosen were preempted, so the next round has fewer to serve.
            if rows:
                return self._make_plan(phase, rows, ready)
        assert not self._waiting, "nothing runs although something waits"
        return None

    def foresee(self, plan: StepPlan) -> StepPlan | None:
        """The plan that the next `schedule` gives, itself, if nothing changes until then.

        To be asked while the device works on `plan`; changes nothing, so that the plans are
        the same without it. What changes a plan: whoever is admitted, preempted or finished,
        which `schedule` notices, and costs, which must stay the same until then.

        Returns:
            A plan without the tokens to compute, as those are being sampled, and without the
            blocks that it begins; None when the next step is better planned in its turn.
        """
        assert plan is self._in_flight, "this is not the plan in flight"
        return self._foresight.look(plan)

    def update(self, plan: StepPlan, results: Rows[RowResult]) -> list[Sequence]:
        """Take over what a step computed; `results` has one for each row of the plan.

        Returns:
            The sequences that finished with this step; their blocks are released.
        """
        assert plan is self._in_flight, "this is not the plan in flight"
        self._in_flight = None
        finished = []
        for row, result in zip(plan.rows, results, strict=True):
            sequence = row.sequence
            if sequence.status is SequenceStatus.FINISHED:
                continue
            reason = self._take_over(row, result)
            if reason is not None:
                self._lifecycle.finish(sequence, reason)
                finished.append(sequence)
        return finished

    def fail(self, plan: StepPlan) -> list[Sequence]:
        """Finish the sequences of a step that failed, with ERROR; all others go on.

        Nothing of the step is kept. Returns those that were not finished before.
        """
        assert plan is self._in_flight, "this is not the plan in flight"
        self._in_flight = None
        # Once each: one that is scored has several rows.
        sequences = dict.fromkeys(row.sequence for row in plan.rows)
        failed = [s for s in sequences if s.status is not SequenceStatus.FINISHED]
        for sequence in failed:
            self._lifecycle.finish(sequence, FinishReason.ERROR)
        return failed

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> Sequence | None:
        """Finish a live request now, whatever its state; None when no live one has the id.

        Args:
            reason: STOP when the text layer found a stop string.
        """
        sequence = self._lifecycle.live.get(request_id)
        if sequence is not None:
            self._lifecycle.finish(sequence, reason)
        return sequence

    def check(self) -> None:
        """Assert the invariants of pool, prefix cache, queue and sequences."""
        assert len(self._running) <= self._max_num_seqs, "too many sequences run"
        self._lifecycle.check(self._in_flight)

    def quarantine(self) -> list[Sequence]:
        """End what `check` found broken and repair the rest, see `Lifecycle.quarantine`."""
        assert self._in_flight is None, "a step is in flight"
        return self._lifecycle.quarantine()

    def _prompt_rows(self, unready: list[Sequence], ready: list[Sequence]) -> list[RowPlan]:
        """The most pressing prompt's next rows, and whatever shares their step for free."""
        budget_s = self._policy.chunk_budget_s(ready, unready, self._lifecycle.now)
        rows = self._make_room(self._chooser.prompt_rows(unready[0], budget_s))
        if not rows:
            return []
        if rows[0].is_computed:
            bucket = self._chooser.pick(Phase.DECODE, rows)
            assert bucket is not None, "rows were chosen that no bucket takes"
            self._add_riders(bucket, rows, [*ready, *unready[1:]])
            return rows
        for sequence in unready[1:]:
            if sequence.status is not SequenceStatus.RUNNING or sequence.is_scoring:
                continue
            row = self._chooser.join(rows, sequence)
            if row is not None:
                self._add_if_free(rows, row)
        return self._filled(rows, ready)

    def _filled(self, rows: list[RowPlan], ready: list[Sequence]) -> list[RowPlan]:
        """The same rows up to the edge of their bucket, as far as blocks are free.

        Chunks grow into what would be padded, and decode rows take the places that are left.
        """
        bucket = self._chooser.pick(Phase.PREFILL, rows)
        assert bucket is not None, "rows were chosen that no bucket takes"
        for index, row in enumerate(rows):
            longer = self._chooser.fill_prefill(bucket, row)
            others = [*rows[:index], longer, *rows[index + 1 :]]
            if self._blocks.num_wanted(others) <= self._pool.num_free:
                rows = others
        self._add_riders(bucket, rows, ready)
        return rows

    def _decode_rows(self, ready: list[Sequence], unready: list[Sequence]) -> list[RowPlan]:
        """All sequences that are ready, in turn when they are too many for a step."""
        rows = self._make_room(self._chooser.decode_rows(ready))
        if len(rows) < len(ready):
            for row in rows:
                self._running[row.sequence.request_id] = self._running.pop(row.sequence.request_id)
        if rows and unready:
            bucket = self._chooser.pick(Phase.DECODE, rows)
            assert bucket is not None, "rows were chosen that no bucket takes"
            self._add_riders(bucket, rows, unready)
        return rows

    def _add_riders(self, bucket: Bucket, rows: list[RowPlan], others: list[Sequence]) -> None:
        """Let sequences of the other phase compute a token each in rows that would be padded."""
        still = [s for s in others if s.status is SequenceStatus.RUNNING]
        for row in self._chooser.riders(bucket, len(rows), still):
            self._add_if_free(rows, row)

    def _add_if_free(self, rows: list[RowPlan], row: RowPlan) -> None:
        """Add a row that need not be there, if its blocks are free."""
        if self._blocks.num_wanted([*rows, row]) <= self._pool.num_free:
            rows.append(row)

    def _make_room(self, rows: list[RowPlan]) -> list[RowPlan]:
        """Preempt, the least urgent and of these the youngest first, until the rest has blocks.

        The oldest of the most urgent is preempted last of all, and alone it always fits. As
        waiting raises urgency, every sequence becomes that one in time and finishes.
        """
        while self._blocks.num_wanted(rows) > self._pool.num_free:
            victim = max(self._running.values(), key=_rank)
            self._lifecycle.preempt(victim)
            rows = [row for row in rows if row.sequence is not victim]
        return rows

    def _make_plan(self, phase: Phase, rows: list[RowPlan], ready: list[Sequence]) -> StepPlan:
        choice = self._chooser.choose_bucket(bucket_phase(phase, rows), rows)
        plan = StepPlan(choice.bucket, tuple(rows), self._blocks.provide(rows))
        self._begin(plan, phase, choice, ready)
        return plan

    def _run_foreseen(self, foreseen: ForeseenStep) -> StepPlan:
        self._blocks.provide(foreseen.growing)
        ready = [row.sequence for row in foreseen.plan.rows]
        self._begin(foreseen.plan, Phase.DECODE, foreseen.choice, ready)
        return foreseen.plan

    def _begin(
        self, plan: StepPlan, phase: Phase, choice: BucketChoice, ready: list[Sequence]
    ) -> None:
        self._chooser.settle(choice)
        self._policy.ran(phase, len(plan.rows), choice.cheapest_s, ready)
        for row in plan.rows:
            row.sequence.idle_since = self._lifecycle.now
        self._in_flight = plan

    def _take_over(self, row: RowPlan, result: RowResult) -> FinishReason | None:
        """Advance one sequence by its row; why it ends, if it does."""
        if isinstance(result, SamplingFailure):
            return FinishReason.ERROR
        sequence = row.sequence
        if row.is_computed:
            sequence.num_scored = row.start + 1
        else:
            sequence.num_computed_tokens = row.start + row.num_tokens
            self._lifecycle.computed(sequence, row.start // self._block_size)
        if row.samples or row.scores:
            self._lifecycle.tenants.charge(sequence, 1)
        if not row.samples:
            return FinishReason.LENGTH if _is_scored(sequence) else None
        assert isinstance(result, SampledToken), f"no token for {sequence.request_id}"
        sequence.token_ids.append(result.token_id)
        if sequence.matcher is not None:
            sequence.matcher.accept(result.token_id)
        return finish_reason(sequence, self._eos_token_ids, self._admission.max_len)


def _is_scored(sequence: Sequence) -> bool:
    """Whether all is done that a request without an answer asked for."""
    is_computed = sequence.num_computed_tokens >= sequence.num_prompt_tokens
    return sequence.params.is_score_only and is_computed and not sequence.num_unscored


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank
