"""Switching: whether to leave the last bucket for a cheaper one, where a change has a price.

Owns the memory of what staying has cost so far. Which buckets could run a step is `buckets.py`'s
business.
"""

from __future__ import annotations

from dataclasses import dataclass

from omruntime.buckets import Bucket, Phase
from omruntime.costs.cost_table import CostTable


@dataclass(frozen=True, slots=True)
class BucketChoice:
    """What a step would run in; nothing is remembered before `Switching.settle`.

    Attributes:
        cheapest_s: Predicted seconds of the cheapest bucket, which need not be the chosen one.
        lost_s: What staying in the last bucket will have cost by then.
    """

    bucket: Bucket
    cheapest_s: float
    lost_s: float


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

    def choose(self, cheapest: Bucket, last_covers: bool) -> BucketChoice:
        """The bucket that a step should run.

        Args:
            cheapest: The choice of `BucketTable.pick`.
            last_covers: Whether the last bucket of the phase covers the step as well.
        """
        phase, last = cheapest.phase, self.last(cheapest.phase)
        cheapest_s, lost_s = self._costs.seconds(cheapest), self._lost_s[phase]
        if last == cheapest:
            return BucketChoice(cheapest, cheapest_s, lost_s)
        if last is not None and last_covers:
            lost_s += max(0.0, self._costs.seconds(last) - cheapest_s)
            if lost_s < self._costs.switch_s:
                return BucketChoice(last, cheapest_s, lost_s)
        return BucketChoice(cheapest, cheapest_s, 0.0)

    def settle(self, choice: BucketChoice) -> None:
        """A step runs in the bucket that was chosen."""
        phase = choice.bucket.phase
        self._last[phase], self._lost_s[phase] = choice.bucket, choice.lost_s

    def last(self, phase: Phase) -> Bucket | None:
        """The bucket of the phase's last step."""
        return self._last.get(phase)
