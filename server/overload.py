"""Overload: when so much waits that new requests had better go elsewhere.

Owns the verdict, which readiness shows. Nothing is refused by it: that is done at the queue's
limits, and never below them.
"""

from __future__ import annotations

import asyncio

from omruntime.limits import EngineLimits
from omruntime.outputs import EngineLoad
from server.lifecycle import Lifecycle
from server.seams import EngineLike

# Of a queue's limit. Early enough for a load balancer, which asks every few seconds, to send
# requests elsewhere before they are refused here.
OVERLOADED_FROM = 0.8
# Far enough below that readiness does not flap while the queue hovers about the upper one.
RECOVERED_BELOW = 0.5
# Probes come once a second at most.
INTERVAL_S = 0.25


class OverloadGauge:
    """Looks at one load after the other."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self.is_overloaded = False

    def update(self, load: EngineLoad) -> bool:
        """Whether the server is overloaded, in the light of what it was before."""
        share = max(
            load.num_waiting / self._limits.max_queued_requests,
            load.num_waiting_tokens / self._limits.max_queued_tokens,
        )
        self.is_overloaded = share >= (RECOVERED_BELOW if self.is_overloaded else OVERLOADED_FROM)
        return self.is_overloaded


async def watch_overload(engine: EngineLike, lifecycle: Lifecycle) -> None:
    """Keep the lifecycle informed until cancelled."""
    gauge = OverloadGauge(engine.limits)
    while True:
        lifecycle.set_overloaded(gauge.update(engine.load()))
        await asyncio.sleep(INTERVAL_S)
