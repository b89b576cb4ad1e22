"""LoadWatch: what the server holds and has done, again and again, for those who watch it.

Owns what a snapshot is, how often one may be had, and how many may watch. `WatchLoad`, the live
page and `/metrics` show the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from omruntime.engine_state import SequenceState
from omruntime.errors import OverloadedError, RequestError
from omruntime.outputs import EngineCounters, EngineLoad
from server.control.inspector import MAX_WAIT_S, MIN_INTERVAL_S, Inspector, Look
from server.control.request_counts import RequestCounts
from server.control.steering import may_steer, own_tenant
from server.lifecycle import Lifecycle, ServerState
from server.seams import EngineLike
from server.security.access import Access

MAX_INTERVAL_S = 3600.0
DEFAULT_INTERVAL_S = 1.0
# A snapshot takes up to two milliseconds of the loop that sends tokens: so many at a second's
# interval take a fifteenth of it.
MAX_WATCHERS = 32
# When somebody else stops to watch is not known.
WATCH_RETRY_S = 10.0


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """The server at one moment.

    Attributes:
        uptime_s: Of the moment.
        num_requests: Requests at the front that have not ended.
        counts: Of requests; the running counts themselves, so to be read at once.
        look: What the engine said when it was asked; None when it was not, or never has.
        is_simulated: Whether the device is a simulation, whose times say nothing of a card.
    """

    uptime_s: float
    state: ServerState
    num_requests: int
    load: EngineLoad
    counters: EngineCounters
    counts: RequestCounts
    look: Look | None
    is_simulated: bool


class LoadWatch:
    """Takes snapshots; for one event loop."""

    def __init__(
        self, lifecycle: Lifecycle, engine: EngineLike, access: Access, is_simulated: bool
    ) -> None:
        self._lifecycle = lifecycle
        self._engine = engine
        self._access = access
        self._is_simulated = is_simulated
        self._inspector = Inspector(engine)
        self._num_watchers = 0

    async def snapshot(self, details: bool, max_wait_s: float = MAX_WAIT_S) -> LoadSnapshot:
        """The server now, with what the current caller may see of others' answers.

        Args:
            details: Whether to ask the engine as well.
            max_wait_s: What the engine gets to answer; then its last answer is taken.
        """
        is_asked = details and self._lifecycle.is_loaded
        look = await self._inspector.look(max_wait_s) if is_asked else None
        return LoadSnapshot(
            uptime_s=self._lifecycle.uptime_s,
            state=self._lifecycle.state,
            num_requests=self._lifecycle.num_running,
            load=self._engine.load(),
            counters=self._engine.counters(),
            counts=self._lifecycle.counts,
            look=None if look is None else self._visible(look),
            is_simulated=self._is_simulated,
        )

    async def snapshots(
        self, interval_s: float, details: bool
    ) -> AsyncGenerator[LoadSnapshot, None]:
        """Snapshots at an interval, or when the reader comes for the next one, if that is later.

        Raises:
            RequestError: The interval is out of range.
            OverloadedError: Too many watch.
        """
        if not MIN_INTERVAL_S <= interval_s <= MAX_INTERVAL_S:
            raise RequestError(
                f"interval_s is {interval_s:g}, wanted {MIN_INTERVAL_S:g} to {MAX_INTERVAL_S:g}"
            )
        if self._num_watchers >= MAX_WATCHERS:
            raise OverloadedError.until(
                f"{MAX_WATCHERS} watch already, which is the limit; close a page, or use GetLoad",
                WATCH_RETRY_S,
            )
        self._num_watchers += 1
        try:
            loop = asyncio.get_running_loop()
            while True:
                due = loop.time() + interval_s
                yield await self.snapshot(details)
                await asyncio.sleep(max(0.0, due - loop.time()))
        finally:
            self._num_watchers -= 1

    def _visible(self, look: Look) -> Look:
        """Without the answers that are not for the current caller, each by its caller's id."""
        shown, tenant = look.state.sequences, own_tenant()
        if tenant is not None:
            shown = tuple(sequence for sequence in shown if sequence.tenant == tenant)
        elif not may_steer(self._access):
            shown = ()
        if self._access.keys is not None:
            shown = tuple(map(_by_own_id, shown))
        return replace(look, state=replace(look.state, sequences=shown))


def _by_own_id(sequence: SequenceState) -> SequenceState:
    """With API keys the engine's ids begin with the tenant, as ids are the tenants' own."""
    own_id = sequence.request_id.removeprefix(f"{sequence.tenant}/")
    return replace(sequence, request_id=own_id)
