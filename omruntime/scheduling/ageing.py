"""Ageing: whoever has had no step for long rises by a class, so that nobody starves.

That holds for those that wait for blocks and for those that run: a prompt among more urgent ones
may hold its blocks and yet have no turn.
"""

from __future__ import annotations

from collections.abc import Mapping

from omruntime.scheduling.turn import HIGHEST
from omruntime.scheduling.waiting_queue import WaitingQueue
from omruntime.sequence import Sequence

# So many seconds without a step raise a sequence by one class. Long against an answer's usual
# wait, so that classes mean something, and short against a caller's patience.
AGEING_S = 10.0
# Ages are looked at no more often than this.
_INTERVAL_S = 0.25


class Ageing:
    """Raises the sequences of one scheduler."""

    def __init__(self, waiting: WaitingQueue, running: Mapping[str, Sequence]) -> None:
        self._waiting = waiting
        self._running = running
        self._looked_at = 0.0

    def apply(self, now: float) -> None:
        """Raise those that are due by one class; `now` is monotonic seconds."""
        if now < self._looked_at + _INTERVAL_S:
            return
        self._looked_at = now
        for sequence in self._waiting:
            if _is_due(sequence, now):
                self._waiting.move_up(sequence)
                sequence.idle_since = now
        for sequence in self._running.values():
            if _is_due(sequence, now):
                sequence.urgency += 1
                sequence.idle_since = now


def _is_due(sequence: Sequence, now: float) -> bool:
    return sequence.urgency < HIGHEST and now >= sequence.idle_since + AGEING_S
