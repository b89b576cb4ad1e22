"""Inspector: looks at the engine for everybody who watches, and never lets them wait long.

Owns how often the engine is asked. A step cannot be interrupted, so a look may come late; those
who wait for it then get the one before, with its age.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from omruntime.engine_state import EngineState
from omruntime.errors import OmError
from server.seams import EngineLike

# However many watch, the engine is asked no more often: a look takes up to two milliseconds of it.
MIN_INTERVAL_S = 0.25
# The longest usual steps take about so long.
MAX_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Look:
    """What the engine said.

    Attributes:
        taken_at: Seconds of `time.monotonic`.
    """

    state: EngineState
    taken_at: float

    @property
    def age_s(self) -> float:
        """Seconds since the engine said it."""
        return time.monotonic() - self.taken_at


class Inspector:
    """The engine's latest state; for one event loop."""

    def __init__(self, engine: EngineLike, min_interval_s: float = MIN_INTERVAL_S) -> None:
        self._engine = engine
        self._min_interval_s = min_interval_s
        self._last: Look | None = None
        self._asking: asyncio.Task[None] | None = None

    async def look(self, max_wait_s: float) -> Look | None:
        """The newest look that can be had in so many seconds; None when there never was one."""
        if self._last is None or self._last.age_s >= self._min_interval_s:
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask())
            await asyncio.wait((self._asking,), timeout=max_wait_s)
        return self._last

    async def _ask(self) -> None:
        try:
            self._last = Look(await self._engine.inspect(), time.monotonic())
        except OmError:
            pass  # whoever looks sees by the age that nothing new came
        finally:
            self._asking = None
