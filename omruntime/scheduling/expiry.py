"""Expiry: which live requests have waited or lived too long.

Owns the watch over queue timeouts and deadlines. Ending the requests is the scheduler's business.
"""

from __future__ import annotations

from omruntime.sequence import Sequence


class Expiry:
    """Looks at those requests alone that time can end; for the engine thread alone."""

    def __init__(self) -> None:
        self._watched: dict[str, Sequence] = {}
        self._in_queue: set[str] = set()

    def watch(self, sequence: Sequence) -> None:
        """A request was queued."""
        if sequence.request.scheduling.is_timed:
            self._watched[sequence.request_id] = sequence
            self._in_queue.add(sequence.request_id)

    def admitted(self, sequence: Sequence) -> None:
        """A request was admitted, so that its queue timeout has no meaning any more."""
        self._in_queue.discard(sequence.request_id)

    def forget(self, sequence: Sequence) -> None:
        """A request has finished."""
        self._watched.pop(sequence.request_id, None)
        self._in_queue.discard(sequence.request_id)

    def due(self, now: float) -> list[tuple[Sequence, str]]:
        """What must end now, and why in words for the caller."""
        due = []
        for sequence in self._watched.values():
            detail = self._detail(sequence, now)
            if detail:
                due.append((sequence, detail))
        return due

    def _detail(self, sequence: Sequence, now: float) -> str:
        scheduling = sequence.request.scheduling
        if scheduling.deadline is not None and now >= scheduling.deadline:
            return f"its deadline passed after {now - sequence.submitted_at:.3f} s"
        timeout_s = scheduling.queue_timeout_s
        if timeout_s is None or sequence.request_id not in self._in_queue:
            return ""
        if now < sequence.submitted_at + timeout_s:
            return ""
        return f"it was not admitted within its queue_timeout_s of {timeout_s:g}"
