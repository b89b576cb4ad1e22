"""Scheduling: what a request says about its turn, and the urgency classes.

Owns the wishes alone. Who comes first is `waiting_queue.py`'s business, what a late request costs
the others `phase_policy.py`'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

from omruntime.errors import RequestError
from omruntime.field_types import require_number


class Urgency(IntEnum):
    """Three classes: more would only blur who may preempt whom."""

    LOW = 0
    NORMAL = 1
    HIGH = 2


# Service is counted in tokens divided by weight, and newcomers begin at the least count: one of
# 1e300 would swallow what everybody else is charged until the server is idle.
MIN_TENANT_WEIGHT = 1e-6
MAX_TENANT_WEIGHT = 1e6


@dataclass(frozen=True, slots=True)
class Scheduling:
    """One request's wishes about its turn.

    Attributes:
        urgency: Higher classes are admitted first, and may preempt lower ones.
        tenant: Whose request it is; tenants of one class share the engine by their weights.
        tenant_weight: The tenant's share against others'; the last request's counts.
            1e-6 to 1e6.
        queue_timeout_s: Ends the request when it was not admitted so many seconds after it
            was submitted; None waits.
        deadline: Ends the request in any state; seconds of `time.monotonic`. None has none.
        ttft_target_s, itl_target_s: Wished time to the first token and between tokens; None
            means the engine's.
        keeps_prefix: Its cached blocks are evicted after those of others.
    """

    urgency: Urgency = Urgency.NORMAL
    tenant: str = ""
    tenant_weight: float = 1.0
    queue_timeout_s: float | None = None
    deadline: float | None = None
    ttft_target_s: float | None = None
    itl_target_s: float | None = None
    keeps_prefix: bool = False

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            RequestError: A value is of the wrong type or out of range; the message names it.
        """
        if self.urgency not in tuple(Urgency):
            raise RequestError(f"urgency is {self.urgency!r}, wanted {LOWEST} to {HIGHEST}")
        require_number("tenant_weight", self.tenant_weight)
        if not MIN_TENANT_WEIGHT <= self.tenant_weight <= MAX_TENANT_WEIGHT:
            raise RequestError(
                f"tenant_weight is {self.tenant_weight}, wanted {MIN_TENANT_WEIGHT:g} to "
                f"{MAX_TENANT_WEIGHT:g}"
            )
        for name in ("queue_timeout_s", "ttft_target_s", "itl_target_s"):
            value = getattr(self, name)
            if value is None:
                continue
            require_number(name, value)
            if not 0 < value < math.inf:
                raise RequestError(f"{name} is {value}, wanted above 0 and finite")
        if self.deadline is not None:
            require_number("deadline", self.deadline)
            if not math.isfinite(self.deadline):
                raise RequestError(f"deadline is {self.deadline}, wanted a finite number")

    @property
    def is_timed(self) -> bool:
        """Whether time alone can end the request."""
        return self.queue_timeout_s is not None or self.deadline is not None


LOWEST, HIGHEST = int(min(Urgency)), int(max(Urgency))
