"""Draining: from healthy to empty, for SIGTERM and for the Drain RPC alike.

Owns the order: first unhealthy, then refusing, then empty. Each step may be asked for twice. What
happens to the process afterwards is decided by who drains it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass

from server.lifecycle import Lifecycle
from server.seams import EngineLike

logger = logging.getLogger(__name__)

# People and scripts that wait for the end see no difference below.
LOOK_INTERVAL_S = 0.25
ABORT_AGAIN_S = 1.0
# A day, which no answer takes.
MAX_GRACE_S = 86400.0


async def refuse_new(
    lifecycle: Lifecycle, engine: EngineLike, delay_s: float, hurry: asyncio.Event | None = None
) -> None:
    """Turn unhealthy, and `delay_s` later, or when `hurry` is set, refuse new requests.

    Returns at once when they are refused already.
    """
    if lifecycle.is_refusing:
        return
    lifecycle.announce_draining()
    # At least once around the loop, which publishes the health, before anything is refused.
    logger.info("unhealthy, refusing follows delay_s=%g", delay_s)
    with suppress(TimeoutError):
        async with asyncio.timeout(delay_s):
            await (hurry or asyncio.Event()).wait()
    lifecycle.begin_draining()
    engine.drain()
    logger.info("draining num_running=%d", lifecycle.num_running)


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """How far a drain is.

    Attributes:
        num_requests: Requests at the front that have not ended; at 0 the server is drained.
        num_running, num_waiting: Answers in the engine.
        is_refusing: Whether new requests are refused by now.
        num_aborted: Requests that were aborted at the end of the grace.
        is_drained: Whether nothing is left, for good.
    """

    num_requests: int
    num_running: int
    num_waiting: int
    is_refusing: bool
    num_aborted: int
    is_drained: bool


class Drain:
    """One drain under way, which goes on whether or not anybody watches it."""

    def __init__(
        self, lifecycle: Lifecycle, engine: EngineLike, delay_s: float, grace_s: float
    ) -> None:
        """Begin.

        Args:
            delay_s: Between unhealthy and refusing.
            grace_s: What running requests get after that before they are aborted.
        """
        self._lifecycle = lifecycle
        self._engine = engine
        self._num_aborted = 0
        self.task = asyncio.create_task(self._run(delay_s, grace_s))

    async def changes(self) -> AsyncGenerator[DrainProgress, None]:
        """How far it is, at each change, the end last."""
        told = None
        while told is None or not told.is_drained:
            progress = self._progress()
            if progress != told:
                told = progress
                yield progress
            await asyncio.wait((self.task,), timeout=LOOK_INTERVAL_S)

    async def _run(self, delay_s: float, grace_s: float) -> None:
        await refuse_new(self._lifecycle, self._engine, delay_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._lifecycle.wait_idle()
        while self._lifecycle.num_running:
            self._num_aborted += self._lifecycle.require_loaded().abort_all()
            logger.warning("grace is over, aborting num_running=%d", self._lifecycle.num_running)
            # Again after a while: one that was accepted just before is in nobody's list yet.
            with suppress(TimeoutError):
                async with asyncio.timeout(ABORT_AGAIN_S):
                    await self._lifecycle.wait_idle()
        logger.info("drained num_aborted=%d", self._num_aborted)

    def _progress(self) -> DrainProgress:
        load = self._engine.load()
        return DrainProgress(
            num_requests=self._lifecycle.num_running,
            num_running=load.num_running,
            num_waiting=load.num_waiting,
            is_refusing=self._lifecycle.is_refusing,
            num_aborted=self._num_aborted,
            is_drained=self.task.done(),
        )
