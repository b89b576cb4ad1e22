"""Switching: whether to leave the last bucket for a cheaper one, where a change has a price.

Owns the memory of what staying has cost so far. Which buckets could run a step is `buckets.py`'s
business.
"""

from __future__ import annotations

from omruntime.buckets import Bucket, Phase
from omruntime.costs.cost_table import CostTable


class Switching:
    """Stays with a phase's last bucket until staying has cost as much as the change.

    So a batch that shrinks and grows across a border does not pay at every crossing, and the
    sum paid is at most twice that of whoever knew the future. Without a switch cost, as on a
    CPU, the cheapest bucket is taken at once.
    """

    def __init__(self, costs: CostTable) -> None:
        self._costs = costs
        self._last: dict[Phase, Bucket] = {}
        self._lost_s: dict[Phase, float] = dict.fromkeys(Phase, 0.0)

    def settle(self, cheapest: Bucket, last_covers: bool) -> Bucket:
        """The bucket that a step runs.

        Args:
            cheapest: The choice of `BucketTable.pick`.
            last_covers: Whether the last bucket of the phase covers the step as well.
        """
        phase, last = cheapest.phase, self.last(cheapest.phase)
        if last is not None and last_covers and last != cheapest:
            lost_s = self._costs.seconds(last) - self._costs.seconds(cheapest)
            self._lost_s[phase] += max(0.0, lost_s)
            if self._lost_s[phase] < self._costs.switch_s:
                return last
        if last != cheapest:
            self._last[phase], self._lost_s[phase] = cheapest, 0.0
        return cheapest

    def last(self, phase: Phase) -> Bucket | None:
        """The bucket of the phase's last step."""
        return self._last.get(phase)
