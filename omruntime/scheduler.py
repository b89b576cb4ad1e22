"""Scheduler: which sequences compute what in the next step.

Owns the transitions admit, preempt, abort and finish, and the choice of phase. Buckets and
chunk lengths are `row_choice.py`'s, blocks of a step `step_blocks.py`'s, the sums of admission
`admission.py`'s; the executor is unknown here, both speak `StepPlan`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from collections.abc import Sequence as Rows

from omruntime.admission import Admission, Reuse
from omruntime.block_pool import NULL_BLOCK, BlockPool
from omruntime.buckets import BucketTable, Phase
from omruntime.errors import DuplicateRequestError
from omruntime.finish import finish_reason
from omruntime.limits import EngineLimits
from omruntime.prefix_cache import PrefixCache
from omruntime.row_choice import RowChooser
from omruntime.sequence import FinishReason, Request, Sequence, SequenceStatus
from omruntime.step import RowPlan, SampledToken, SamplingFailure, StepPlan
from omruntime.step_blocks import StepBlocks
from omruntime.waiting_queue import WaitingQueue

# A waiter too large for the free blocks lets this many later arrivals pass, then nobody.
MAX_OVERTAKES = 16
# Waiters that do not fit and are looked past in one step; bounds the time of a step.
MAX_LOOKED_PAST = 16


class Scheduler:
    """Continuous batching over a block pool; every call is for the engine thread.

    Each plan of `schedule` is answered by one `update` or `fail` before the next. Between
    them `abort` may end any sequence of it.
    """

    def __init__(
        self,
        limits: EngineLimits,
        table: BucketTable,
        pool: BlockPool,
        cache: PrefixCache | None,
        eos_token_ids: Collection[int],
    ) -> None:
        self._max_num_seqs = limits.max_num_seqs
        self._block_size = table.block_size
        self._pool = pool
        self._cache = cache
        self._eos_token_ids = frozenset(eos_token_ids)
        self._admission = Admission(pool, cache, table.block_size, limits.max_model_len)
        self._chooser = RowChooser(table, limits.max_chunk_tokens)
        self._blocks = StepBlocks(pool, cache, table.block_size)
        self._live: dict[str, Sequence] = {}
        self._waiting = WaitingQueue(limits.max_queued_requests, limits.max_queued_tokens)
        # In turn for decode steps: those served go to the end when not all can be.
        self._running: dict[str, Sequence] = {}
        self._in_flight: StepPlan | None = None
        self._last_phase = Phase.PREFILL
        self._num_arrivals = 0
        self.num_preemptions = 0
        self.num_prefix_hit_tokens = 0

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

    def add(self, request: Request, submitted_at: float = 0.0) -> Sequence:
        """Queue a request behind those that came before.

        `submitted_at` is in seconds of `time.monotonic`.

        Raises:
            RequestError: Its id is that of a live request, or it can never run.
            OverloadedError: A queue limit is reached.
        """
        if request.request_id in self._live:
            raise DuplicateRequestError(
                f"request id {request.request_id!r} is that of a live request; wait for its "
                f"end or choose another"
            )
        self._admission.require_runnable(request)
        self._waiting.require_room(len(request.prompt_token_ids))
        self._num_arrivals += 1
        sequence = Sequence.of(request, self._num_arrivals)
        sequence.submitted_at = submitted_at
        self._live[sequence.request_id] = sequence
        self._waiting.insert(sequence)
        return sequence

    def require_runnable(self, request: Request) -> None:
        """See `Admission.require_runnable`."""
        self._admission.require_runnable(request)

    def live_request_ids(self) -> tuple[str, ...]:
        """The ids of all requests that have not finished."""
        return tuple(self._live)

    def schedule(self) -> StepPlan | None:
        """Plan the next step and give its rows their blocks; None when nothing is live."""
        assert self._in_flight is None, "the last plan was neither updated nor failed"
        self._admit_waiting()
        while self._running:
            phase = self._next_phase()
            rows = self._prefill_rows() if phase is Phase.PREFILL else self._decode_rows()
            # No rows: those chosen were preempted, so the next round has fewer to serve.
            if rows:
                self._in_flight = self._make_plan(phase, rows)
                return self._in_flight
        assert not self._waiting, "nothing runs although something waits"
        return None

    def update(
        self, plan: StepPlan, sampled: Rows[SampledToken | SamplingFailure | None]
    ) -> list[Sequence]:
        """Take over what a step computed.

        `sampled` holds for each row of the plan its next token or why there is none, and None
        for rows that do not sample.

        Returns:
            The sequences that finished with this step; their blocks are released.
        """
        assert plan is self._in_flight, "this is not the plan in flight"
        self._in_flight = None
        finished = []
        for row, token in zip(plan.rows, sampled, strict=True):
            sequence = row.sequence
            if sequence.status is SequenceStatus.FINISHED:
                continue
            reason = self._take_over(row, token)
            if reason is not None:
                self._finish(sequence, reason)
                finished.append(sequence)
        return finished

    def fail(self, plan: StepPlan) -> list[Sequence]:
        """Finish the sequences of a step that failed, with ERROR; all others go on.

        Nothing of the step is kept. Returns those that were not finished before.
        """
        assert plan is self._in_flight, "this is not the plan in flight"
        self._in_flight = None
        sequences = [r.sequence for r in plan.rows]
        failed = [s for s in sequences if s.status is not SequenceStatus.FINISHED]
        for sequence in failed:
            self._finish(sequence, FinishReason.ERROR)
        return failed

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> Sequence | None:
        """Finish a live request now, whatever its state; None when no live one has the id.

        Args:
            reason: STOP when the text layer found a stop string.
        """
        sequence = self._live.get(request_id)
        if sequence is not None:
            self._finish(sequence, reason)
        return sequence

    def check(self) -> None:
        """Assert the invariants of pool, prefix cache, queue and sequences."""
        self._pool.check()
        self._waiting.check()
        if self._cache is not None:
            self._cache.check()
        assert self._live == self._running | {s.request_id: s for s in self._waiting}
        assert len(self._running) + len(self._waiting) == len(self._live)
        assert len(self._running) <= self._max_num_seqs
        for sequence in self._waiting:
            assert sequence.status is SequenceStatus.WAITING
            assert not sequence.block_table, f"{sequence.request_id} waits and holds blocks"
            assert sequence.num_computed_tokens == 0
        ends = {} if self._in_flight is None else _row_ends(self._in_flight)
        for sequence in self._running.values():
            self._check_running(sequence, ends.get(sequence.request_id))
        held = Counter(b for s in self._running.values() for b in s.block_table)
        assert held[NULL_BLOCK] == 0, "a block table holds the null block"
        assert len(held) == self._pool.num_referenced, "a block is held by no sequence"
        for block_id, count in held.items():
            assert self._pool.reference_count(block_id) == count, f"block {block_id} is miscounted"

    def _check_running(self, sequence: Sequence, row_end: int | None) -> None:
        assert sequence.status is SequenceStatus.RUNNING
        assert sequence.num_pending_tokens >= 1, f"{sequence.request_id} has nothing to compute"
        end = sequence.num_computed_tokens if row_end is None else row_end
        num_blocks = -(-end // self._block_size)
        assert len(sequence.block_table) == num_blocks, f"{sequence.request_id}: wrong table length"
        assert len(set(sequence.block_table)) == num_blocks, f"{sequence.request_id}: block twice"

    def _admit_waiting(self) -> None:
        """Admit in order of arrival; what does not fit is looked past, within bounds."""
        looked_past: list[Sequence] = []
        num_spare = self._admission.num_spare(self._running.values()) if self._waiting else 0
        for sequence in self._waiting:
            full = len(self._running) >= self._max_num_seqs or num_spare < 1
            if full or len(looked_past) >= MAX_LOOKED_PAST:
                return
            leader = self._live.get(sequence.request.leader_id or "")
            if self._admission.waits_for(sequence, leader):
                continue
            reuse = self._admission.find_reuse(sequence, leader)
            if self._admission.num_needed(sequence, reuse) <= num_spare:
                self._admit(sequence, reuse)
                num_spare = self._admission.num_spare(self._running.values())
                for overtaken in looked_past:
                    overtaken.num_overtakes += 1
            elif sequence.num_overtakes >= MAX_OVERTAKES:
                return
            else:
                looked_past.append(sequence)

    def _admit(self, sequence: Sequence, reuse: Reuse) -> None:
        self._waiting.remove(sequence)
        self._pool.retain(reuse.block_ids)
        sequence.status = SequenceStatus.RUNNING
        sequence.block_table = list(reuse.block_ids)
        sequence.num_computed_tokens = reuse.num_tokens
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens = reuse.num_cached_tokens
            self.num_prefix_hit_tokens += reuse.num_cached_tokens
        self._running[sequence.request_id] = sequence

    def _next_phase(self) -> Phase:
        """The policy: prefill and decode steps alternate while there is work for both."""
        num_decodable = sum(1 for s in self._running.values() if s.num_pending_tokens == 1)
        if num_decodable == len(self._running):
            return Phase.DECODE
        if num_decodable == 0 or self._last_phase is Phase.DECODE:
            return Phase.PREFILL
        return Phase.DECODE

    def _prefill_rows(self) -> list[RowPlan]:
        """The oldest prompt's next chunk, and whatever shares its step for free."""
        unready = [s for s in self._running.values() if s.num_pending_tokens > 1]
        unready.sort(key=_arrival)
        rows = self._make_room([self._chooser.chunk(unready[0])])
        if not rows:
            return []
        for sequence in unready[1:]:
            if sequence.status is not SequenceStatus.RUNNING:
                continue
            row = self._chooser.join(rows, sequence)
            if row is not None and self._blocks.num_wanted([*rows, row]) <= self._pool.num_free:
                rows.append(row)
        return rows

    def _decode_rows(self) -> list[RowPlan]:
        """All sequences with one pending token, in turn when they are too many for a step."""
        ready = [s for s in self._running.values() if s.num_pending_tokens == 1]
        rows = self._make_room(self._chooser.decode_rows(ready))
        if len(rows) < len(ready):
            for row in rows:
                self._running[row.sequence.request_id] = self._running.pop(row.sequence.request_id)
        return rows

    def _make_room(self, rows: list[RowPlan]) -> list[RowPlan]:
        """Preempt, youngest first, until the rows that are left find their blocks.

        The oldest sequence is preempted last of all, and alone it always fits; so every
        sequence becomes the oldest in time and finishes.
        """
        while self._blocks.num_wanted(rows) > self._pool.num_free:
            victim = max(self._running.values(), key=_arrival)
            self._preempt(victim)
            rows = [row for row in rows if row.sequence is not victim]
        return rows

    def _make_plan(self, phase: Phase, rows: list[RowPlan]) -> StepPlan:
        bucket = self._chooser.pick(phase, rows)
        assert bucket is not None, "rows were chosen that no bucket takes"
        self._last_phase = phase
        return StepPlan(bucket, tuple(rows), self._blocks.provide(rows))

    def _take_over(
        self, row: RowPlan, token: SampledToken | SamplingFailure | None
    ) -> FinishReason | None:
        """Advance one sequence by its row; why it ends, if it does."""
        if isinstance(token, SamplingFailure):
            return FinishReason.ERROR
        sequence = row.sequence
        sequence.num_computed_tokens = row.start + row.num_tokens
        if self._cache is not None:
            self._cache.insert(sequence, row.start // self._block_size)
        if not row.samples:
            return None
        assert token is not None, f"{sequence.request_id} has a row that samples and no token"
        sequence.token_ids.append(token.token_id)
        return finish_reason(sequence, self._eos_token_ids, self._admission.max_len)

    def _preempt(self, sequence: Sequence) -> None:
        """Take a sequence's blocks; its tokens stay and are computed again after admission."""
        del self._running[sequence.request_id]
        self._drop_blocks(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._waiting.insert(sequence)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        del self._live[sequence.request_id]
        if sequence.status is SequenceStatus.RUNNING:
            del self._running[sequence.request_id]
            self._drop_blocks(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason

    def _drop_blocks(self, sequence: Sequence) -> None:
        self._pool.release(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed_tokens = 0


def _row_ends(plan: StepPlan) -> dict[str, int]:
    live = [r for r in plan.rows if r.sequence.status is SequenceStatus.RUNNING]
    return {r.sequence.request_id: r.start + r.num_tokens for r in live}


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival
