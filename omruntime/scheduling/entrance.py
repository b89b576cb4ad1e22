"""Entrance: who of those that wait begins to run.

Owns the passes over the queue: in turn, past what does not fit within bounds, and over the
places of less urgent sequences. The sums are `admission.py`'s, the order `waiting_queue.py`'s.
"""

from __future__ import annotations

from omruntime.blocks.block_pool import BlockPool
from omruntime.scheduling.admission import Admission, Reuse, Room
from omruntime.scheduling.lifecycle import Lifecycle
from omruntime.sequence import Sequence

# A waiter too large for the free blocks lets this many others pass, then nobody.
MAX_OVERTAKES = 16
# Waiters that do not fit and are looked past in one step; bounds the time of a step.
MAX_LOOKED_PAST = 16


class Entrance:
    """Admits waiting sequences while places and blocks last; for the engine thread alone."""

    def __init__(
        self, lifecycle: Lifecycle, admission: Admission, pool: BlockPool, max_num_seqs: int
    ) -> None:
        self._lifecycle = lifecycle
        self._admission = admission
        self._pool = pool
        self._max_num_seqs = max_num_seqs
        self._running = lifecycle.running
        # What the running ones leave free; None when that has changed since it was summed up.
        self._spare: Room | None = None

    def admit_waiting(self) -> bool:
        """Admit in turn; what does not fit is looked past, within bounds.

        Returns:
            Whether somebody is left for want of room; others wait for a prefill under way.
        """
        self._spare = None
        if not self._lifecycle.waiting:
            return False
        looked_past: list[Sequence] = []
        for sequence in self._lifecycle.waiting.in_turn(self._lifecycle.tenants.service):
            if len(looked_past) >= MAX_LOOKED_PAST or not self._may_admit_any():
                return True
            leader = self._lifecycle.live.get(sequence.request.leader_id or "")
            if self._waits_for_another(sequence, leader):
                continue
            reuse = self._admission.find_reuse(sequence, leader)
            if self._fits(sequence, reuse) or self._make_way(sequence, reuse):
                self._lifecycle.admit(sequence, reuse)
                self._spare = None
                for overtaken in looked_past:
                    overtaken.num_overtakes += 1
            elif sequence.num_overtakes >= MAX_OVERTAKES:
                return True
            else:
                looked_past.append(sequence)
        return bool(looked_past)

    def _may_admit_any(self) -> bool:
        """Whether there is a place at all, or somebody might make way for somebody."""
        if len(self._running) < self._max_num_seqs and self._room().num_soon >= 1:
            return True
        least = min((s.urgency for s in self._running.values()), default=0)
        return self._lifecycle.waiting.max_own_urgency() > least

    def _waits_for_another(self, sequence: Sequence, leader: Sequence | None) -> bool:
        """Whether a sequence had better wait while another computes its beginning."""
        if self._admission.waits_for(sequence, leader):
            return True
        shared_prefill = self._lifecycle.shared_prefill
        if not len(shared_prefill):
            return False
        return shared_prefill.worth_waiting(sequence, self._admission.num_matched_blocks(sequence))

    def _room(self) -> Room:
        if self._spare is None:
            self._spare = self._admission.to_spare(self._running.values())
        return self._spare

    def _fits(self, sequence: Sequence, reuse: Reuse) -> bool:
        if len(self._running) >= self._max_num_seqs:
            return False
        needed = self._admission.needed(sequence, reuse)
        return self._admission.has_room(self._room(), needed, len(self._running))

    def _make_way(self, sequence: Sequence, reuse: Reuse) -> bool:
        """Preempt less urgent sequences until a waiting one fits; none if all were not enough.

        Only the urgency that was asked for counts: one that rose by waiting is served before
        others, but takes nobody's place, so that equal ones never take turns in preempting.
        """
        asked = sequence.request.scheduling.urgency
        victims = [s for s in self._running.values() if s.urgency < asked]
        if not victims or not self._would_fit(sequence, reuse, victims):
            return False
        victims.sort(key=lambda victim: victim.rank)
        # A victim may be the only one to hold what is to be reused.
        self._pool.retain(reuse.block_ids)
        while victims and not self._fits(sequence, reuse):
            self._lifecycle.preempt(victims.pop())
            self._spare = None
        self._pool.release(reuse.block_ids)
        return self._fits(sequence, reuse)

    def _would_fit(self, sequence: Sequence, reuse: Reuse, victims: list[Sequence]) -> bool:
        """Whether a sequence fits once all victims have given up their blocks."""
        others = [s for s in self._running.values() if s not in victims]
        spare = self._admission.to_spare(others)
        held = {b for s in victims for b in s.block_table if self._pool.reference_count(b) == 1}
        room = Room(spare.num_soon + len(held), spare.num_in_all + len(held))
        # Blocks that would be freed and reused at once are no gain.
        needed = self._admission.needed(sequence, reuse)
        num_both = len(held.intersection(reuse.block_ids))
        needed = Room(needed.num_soon + num_both, needed.num_in_all + num_both)
        return self._admission.has_room(room, needed, len(others))
