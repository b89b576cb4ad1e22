"""BackOff: how long to wait before a process that died is started again."""

from __future__ import annotations

FIRST_S = 0.25
MOST_S = 30.0
# Who served for so long is healthy: the next death is a new matter.
HEALTHY_S = 60.0


class BackOff:
    """Delays that double from FIRST_S to MOST_S and begin anew after a time of health."""

    def __init__(self) -> None:
        self._delay_s = FIRST_S

    def next_delay_s(self, served_s: float) -> float:
        """The wait after a death.

        Args:
            served_s: How long the process had served; 0 when it never came so far.
        """
        if served_s >= HEALTHY_S:
            self._delay_s = FIRST_S
        delay_s, self._delay_s = self._delay_s, min(2 * self._delay_s, MOST_S)
        return delay_s
