"""Whether the load generator itself was the limit: its loop's lag, late sends, its CPU time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from omruntime.traffic.quantiles import quantile

# How often the loop's lag is looked at: often enough for hundreds of looks in a run of seconds, at
# a cost of well below a hundredth of a core.
LOOK_S = 0.02
# Above it work queues in the loop's one thread: at four fifths of its time an event waits about
# four times as long as it takes, if they come at random.
MAX_LOOP_CPU = 0.8
# An error of a tenth of the median would show in the figures.
MAX_SHARE = 0.1
# The loop's timers count milliseconds, and other processes take turns on its core.
LEAST_S = 0.002


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """What the client needed for itself.

    Attributes:
        lag_p99_s, lag_max_s: How much later the event loop ran than it was asked to; events
            that arrive meanwhile are seen so much too late.
        late_p99_s, late_max_s: How much later requests were sent than they could have been.
        loop_cpu: Share of one core that the event loop's thread used; 1 is all it can have.
        process_cpu: Share of one core that the whole process used.
    """

    lag_p99_s: float
    lag_max_s: float
    late_p99_s: float
    late_max_s: float
    loop_cpu: float
    process_cpu: float

    def warnings(self, ttft_p50_s: float, itl_p50_s: float) -> list[str]:
        """Why the figures are the client's and not the server's, in sentences with numbers.

        Args:
            ttft_p50_s, itl_p50_s: Medians of the run; 0 when there is none.
        """
        found = []
        if self.loop_cpu > MAX_LOOP_CPU:
            found.append(
                f"its event loop used {self.loop_cpu:.0%} of a core, and above {MAX_LOOP_CPU:.0%} "
                f"events queue in it; send less from each of several clients"
            )
        most = max(LEAST_S, MAX_SHARE * (itl_p50_s or ttft_p50_s))
        if self.lag_p99_s > most:
            found.append(
                f"its event loop ran late by {_ms(self.lag_p99_s)} (p99), so that tokens were seen "
                f"late; that is above {_ms(most)}, a tenth of the median time between tokens and "
                f"at least {_ms(LEAST_S)}; give the client a core of its own"
            )
        most = max(LEAST_S, MAX_SHARE * ttft_p50_s)
        if self.late_p99_s > most:
            found.append(
                f"requests were sent late by {_ms(self.late_p99_s)} (p99), which TTFT counts; that "
                f"is above {_ms(most)}, a tenth of the median TTFT and at least {_ms(LEAST_S)}; "
                f"lower the rate, or use several clients"
            )
        return found


@dataclass(slots=True)
class HealthWatch:
    """Filled while `watching` runs."""

    lags_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    loop_cpu_s: float = 0.0
    process_cpu_s: float = 0.0

    def health(self, late_s: Sequence[float]) -> ClientHealth:
        """The sum of a run.

        Args:
            late_s: Of each request that was sent.
        """
        lags, late = sorted(self.lags_s), sorted(late_s)
        wall_s = self.wall_s or 1.0
        return ClientHealth(
            lag_p99_s=quantile(lags, 0.99),
            lag_max_s=quantile(lags, 1.0),
            late_p99_s=quantile(late, 0.99),
            late_max_s=quantile(late, 1.0),
            loop_cpu=self.loop_cpu_s / wall_s,
            process_cpu=self.process_cpu_s / wall_s,
        )


@asynccontextmanager
async def watching() -> AsyncIterator[HealthWatch]:
    """Watch the running event loop, and the thread and process around it."""
    watch = HealthWatch()
    wall, loop_cpu, process = time.perf_counter(), time.thread_time(), time.process_time()
    looking = asyncio.create_task(_look(watch))
    try:
        yield watch
    finally:
        looking.cancel()
        watch.wall_s = time.perf_counter() - wall
        watch.loop_cpu_s = time.thread_time() - loop_cpu
        watch.process_cpu_s = time.process_time() - process


async def _look(watch: HealthWatch) -> None:
    while True:
        asked = time.perf_counter() + LOOK_S
        await asyncio.sleep(LOOK_S)
        watch.lags_s.append(max(0.0, time.perf_counter() - asked))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
