"""Lifecycle: the live sequences, and the transitions enter, admit, preempt and finish.

Owns who waits and who runs, with all that is kept for either: blocks, tenants' service, watched
deadlines, prefills under way. Who is to make which transition is decided in `entrance.py` and
`scheduler.py`.
"""

from __future__ import annotations

from omruntime.blocks.block_pool import BlockPool
from omruntime.blocks.prefix_cache import PrefixCache
from omruntime.errors import DuplicateRequestError
from omruntime.scheduling import invariants
from omruntime.scheduling.admission import Reuse
from omruntime.scheduling.expiry import Expiry
from omruntime.scheduling.output_lengths import OutputLengths
from omruntime.scheduling.shared_prefill import SharedPrefill
from omruntime.scheduling.tenants import Tenants
from omruntime.scheduling.waiting_queue import WaitingQueue
from omruntime.sequence import FinishReason, Request, Sequence, SequenceStatus
from omruntime.step import StepPlan


class Lifecycle:
    """Every live sequence, waiting or running; for the engine thread alone.

    Attributes:
        live, running: By request id. `running` is in turn for decode steps: those served go to
            the end when not all can be.
        now: Seconds of `time.monotonic`, set by the scheduler before each step.
        num_changes: While it stays the same, the same sequences run, and nobody but the steps'
            own rows has got or lost a block.
    """

    def __init__(
        self, pool: BlockPool, cache: PrefixCache | None, block_size: int, waiting: WaitingQueue
    ) -> None:
        self._pool = pool
        self._cache = cache
        self._block_size = block_size
        self.live: dict[str, Sequence] = {}
        self.running: dict[str, Sequence] = {}
        self.waiting = waiting
        self.tenants = Tenants()
        self.lengths = OutputLengths()
        self.shared_prefill = SharedPrefill(block_size)
        self.now = 0.0
        self.num_changes = 0
        self._expiry = Expiry()
        self._num_arrivals = 0
        self.num_preemptions = 0
        self.num_prefix_hit_tokens = 0
        self.num_quarantined = 0

    def require_new(self, request_id: str) -> None:
        """Refuse the id of a live request with DuplicateRequestError."""
        if request_id in self.live:
            raise DuplicateRequestError(
                f"request id {request_id!r} is that of a live request; wait for its end or "
                f"choose another"
            )

    def enter(self, request: Request, submitted_at: float) -> Sequence:
        """A request begins to wait."""
        self._num_arrivals += 1
        sequence = Sequence.of(request, self._num_arrivals)
        sequence.submitted_at = sequence.idle_since = submitted_at
        self.live[sequence.request_id] = sequence
        self.tenants.enter(sequence)
        self._expiry.watch(sequence)
        self.waiting.insert(sequence)
        return sequence

    def admit(self, sequence: Sequence, reuse: Reuse) -> None:
        """A waiting sequence begins to run over what it reuses."""
        self.num_changes += 1
        self.waiting.admit(sequence)
        self._pool.retain(reuse.block_ids)
        sequence.status = SequenceStatus.RUNNING
        sequence.block_table = list(reuse.block_ids)
        sequence.num_computed_tokens = reuse.num_tokens
        self._expiry.admitted(sequence)
        if sequence.num_preemptions == 0:
            self._count_admission(sequence, reuse)
        if self._cache is not None and not sequence.request.bypasses_prefix_cache:
            self.shared_prefill.begin(sequence, self._cache.prompt_keys(sequence))
        self.running[sequence.request_id] = sequence

    def preempt(self, sequence: Sequence) -> None:
        """Take a sequence's blocks; its tokens stay and are computed again after admission."""
        self.num_changes += 1
        del self.running[sequence.request_id]
        self._drop_blocks(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.insert(sequence)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a live sequence, whatever its state."""
        self.num_changes += 1
        del self.live[sequence.request_id]
        if sequence.status is SequenceStatus.RUNNING:
            del self.running[sequence.request_id]
            self._drop_blocks(sequence)
        else:
            self.waiting.remove(sequence)
        self.tenants.leave(sequence)
        self._expiry.forget(sequence)
        is_answer = not sequence.params.is_score_only
        if is_answer and reason in (FinishReason.STOP, FinishReason.LENGTH):
            self.lengths.observe(sequence.num_output_tokens)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason

    def computed(self, sequence: Sequence, first_block: int) -> None:
        """A sequence has computed more, from the block of that index on."""
        if self._cache is not None and not sequence.request.bypasses_prefix_cache:
            self._cache.insert(sequence, first_block)
            if sequence.num_computed_tokens >= sequence.num_prompt_tokens:
                self.shared_prefill.end(sequence)

    def expire(self, now: float) -> list[Sequence]:
        """Finish what has waited or lived too long, with ABORT and a detail."""
        expired = self._expiry.due(now)
        for sequence, detail in expired:
            sequence.finish_detail = detail
            self.finish(sequence, FinishReason.ABORT)
        return [sequence for sequence, _ in expired]

    def check(self, in_flight: StepPlan | None) -> None:
        """Assert the invariants of pool, prefix cache, queue and sequences."""
        self._pool.check()
        self.waiting.check()
        if self._cache is not None:
            self._cache.check()
        invariants.check_sequences(self.live, self.running, [*self.waiting])
        for sequence in self.running.values():
            invariants.check_running(sequence, in_flight, self._block_size)
        invariants.check_blocks(self.running.values(), self._pool)
        invariants.check_prefills(self.shared_prefill, self.running.values())
        self.tenants.check(self.live.values())

    def quarantine(self) -> list[Sequence]:
        """Finish the sequences that break an invariant, with ERROR, and repair what is left.

        Between two steps. Counts are taken anew from the block tables of the others, and the
        prefix cache is emptied, as it may name what was overwritten.
        """
        self.num_changes += 1
        broken = invariants.suspects(self.running.values(), self._pool, self._block_size)
        if self._cache is not None:
            self._cache.flush()
        self._pool.rebuild([s.block_table for s in self.running.values() if s not in broken])
        for sequence in broken:
            sequence.block_table = []
            sequence.finish_detail = "its state was inconsistent, see the server's log"
            self.finish(sequence, FinishReason.ERROR)
        self.num_quarantined += len(broken)
        return broken

    def _count_admission(self, sequence: Sequence, reuse: Reuse) -> None:
        self.tenants.charge(sequence, sequence.num_prompt_tokens)
        sequence.num_cached_tokens = reuse.num_cached_tokens
        self.num_prefix_hit_tokens += reuse.num_cached_tokens
        if self._cache is not None and not sequence.request.bypasses_prefix_cache:
            self._cache.use(sequence, reuse.num_cached_tokens)

    def _drop_blocks(self, sequence: Sequence) -> None:
        self.shared_prefill.end(sequence)
        self._pool.release(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed_tokens = 0
