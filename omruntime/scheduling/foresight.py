"""Foresight: the next step, planned while the device works on the one before.

Owns the one case that is common and sure: every sequence that runs gets its next token by the
step in flight, so the next step gives each of them one more. All other steps are planned when
their turn comes, by `scheduler.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from omruntime.blocks.block_pool import BlockPool
from omruntime.buckets import Phase
from omruntime.costs.switching import BucketChoice
from omruntime.scheduling.lifecycle import Lifecycle
from omruntime.scheduling.row_choice import RowChooser
from omruntime.step import RowPlan, StepPlan


@dataclass(frozen=True, slots=True)
class ForeseenStep:
    """A decode step of all sequences that run.

    Attributes:
        growing: The rows that begin a new block. The others write on in blocks that are theirs
            alone by the step before.
    """

    plan: StepPlan
    choice: BucketChoice
    growing: tuple[RowPlan, ...]


class Foresight:
    """Looks one step ahead and changes nothing by it; for the engine thread alone."""

    def __init__(self, lifecycle: Lifecycle, chooser: RowChooser, pool: BlockPool) -> None:
        self._lifecycle = lifecycle
        self._chooser = chooser
        self._pool = pool
        self._foreseen: ForeseenStep | None = None
        self._num_changes = 0

    def look(self, in_flight: StepPlan) -> StepPlan | None:
        """The next step if nothing changes; None where that is not sure.

        Its rows have no tokens yet, and those that begin a new block lack it.
        """
        self._num_changes = self._lifecycle.num_changes
        self._foreseen = self._foresee(in_flight)
        return None if self._foreseen is None else self._foreseen.plan

    def take(self) -> ForeseenStep | None:
        """What was foreseen, once, if it still holds.

        Between, predicted costs must not have changed.
        """
        foreseen, self._foreseen = self._foreseen, None
        return foreseen if self._num_changes == self._lifecycle.num_changes else None

    def _foresee(self, in_flight: StepPlan) -> ForeseenStep | None:
        rows = self._next_rows(in_flight)
        if rows is None or len(self._chooser.fastest(list(rows))) < len(rows):
            return None
        growing = tuple(row for row in rows if row.start % self._chooser.block_size == 0)
        if len(growing) > self._pool.num_free:
            return None
        choice = self._chooser.choose_bucket(Phase.DECODE, rows)
        return ForeseenStep(StepPlan(choice.bucket, rows), choice, growing)

    def _next_rows(self, in_flight: StepPlan) -> tuple[RowPlan, ...] | None:
        """A row for each sequence that runs, in turn; None unless each writes and samples now."""
        now = {row.sequence: row for row in in_flight.rows if row.samples and not row.is_computed}
        running = tuple(self._lifecycle.running.values())
        if now.keys() != set(running):
            return None
        ends = ((s, now[s].start + now[s].num_tokens) for s in running)
        return tuple(RowPlan(sequence, end, 1, samples=True) for sequence, end in ends)
