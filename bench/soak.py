"""`python -m bench.soak`: hours of churn on an engine; its memory must stay flat.

The whole engine with its thread and streams over the toy model, whose step takes next to
nothing: 48 clients, three requests in ten given up at random times, shared beginnings,
preemptions, timeouts. Exit code 0 only if memory grows by less than 1 MB for each 100,000
requests, all answers were right, and no block is held at the end. That takes an hour: in a minute
what a start takes is no small part of all, and fails the run by its slope.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bench.churn import NUM_CLIENTS, SETTINGS, Client, Tally
from omruntime.async_engine import AsyncEngine
from omruntime.outputs import EngineCounters, EngineLoad
from tests.omruntime.toy_model import write_toy_bundle

DEFAULT_S = 3600.0
MAX_MB_PER_100K = 1.0
NUM_SAMPLES = 300
# The first samples are of caches that fill and of an allocator that finds its size.
NUM_WARM_UP = NUM_SAMPLES // 5
_PAGE = os.sysconf("SC_PAGESIZE")


@dataclass(slots=True)
class Soaked:
    """What a run gives.

    Attributes:
        memory: Requests so far and resident bytes, at equal intervals.
        load, counters: Of the engine once the clients have gone.
    """

    tally: Tally
    load: EngineLoad
    counters: EngineCounters
    seconds: float
    memory: list[tuple[int, int]] = field(default_factory=list)

    @property
    def mb_per_100k(self) -> float:
        """The slope of memory over requests, by least squares after the warm-up."""
        return slope(self.memory[NUM_WARM_UP:]) * 1e5 / 1e6

    @property
    def num_measured(self) -> int:
        """Requests that the slope is over."""
        counts = [num_requests for num_requests, _ in self.memory[NUM_WARM_UP:]]
        return max(counts, default=0) - min(counts, default=0)

    def faults(self) -> list[str]:
        """Why the run has failed, if it has."""
        found = [f"wrong answer: {text}" for text in self.tally.wrong]
        if self.mb_per_100k >= MAX_MB_PER_100K:
            found.append(
                f"memory grows by {self.mb_per_100k:.2f} MB per 100,000 requests, measured over "
                f"{self.num_measured} of them"
            )
        if self.load.num_referenced_blocks:
            found.append(f"{self.load.num_referenced_blocks} blocks are held at the end")
        if self.load.num_running + self.load.num_waiting:
            found.append("requests are live at the end")
        if self.counters.num_quarantined:
            found.append(f"{self.counters.num_quarantined} requests were quarantined")
        return found


def slope(samples: list[tuple[int, int]]) -> float:
    """Resident bytes for each request, by least squares; 0 for fewer than two samples."""
    if len(samples) < 2:
        return 0.0
    requests, resident = np.array(samples, np.float64).T
    spread = requests - requests.mean()
    square = float(spread @ spread)
    return float(spread @ (resident - resident.mean())) / square if square else 0.0


async def soak(bundle: Path, seconds: float, seed: int) -> Soaked:
    """Let the clients run for a time, then wait until nothing of theirs is left."""
    settings = replace(SETTINGS, cache_dir=bundle / "cache")
    engine = AsyncEngine.open(bundle, settings)
    await asyncio.to_thread(engine.start, lambda _line: None)
    tally, start = Tally(), time.monotonic()
    clients = [Client(engine, tally, number, seed) for number in range(NUM_CLIENTS)]
    result = Soaked(tally, engine.load(), engine.counters(), seconds)
    sampling = asyncio.ensure_future(_sample_memory(engine, result))
    try:
        await asyncio.gather(*(c.run(lambda: time.monotonic() >= start + seconds) for c in clients))
        await _wait_idle(engine)
        result.load, result.counters = engine.load(), engine.counters()
    finally:
        sampling.cancel()
        await asyncio.to_thread(engine.stop)
    return result


async def _sample_memory(engine: AsyncEngine, result: Soaked) -> None:
    start = reported = time.monotonic()
    while True:
        await asyncio.sleep(result.seconds / NUM_SAMPLES)
        result.memory.append((result.tally.num_requests, _resident_bytes()))
        if time.monotonic() >= reported + 60:
            reported = time.monotonic()
            _say(f"{reported - start:6.0f} s  {_progress_line(engine, result)}")


def _progress_line(engine: AsyncEngine, result: Soaked) -> str:
    requests, resident = result.memory[-1]
    return (
        f"{requests:9d} requests  {resident / 1e6:8.1f} MB resident  "
        f"{engine.load().num_preemptions:8d} preemptions"
    )


async def _wait_idle(engine: AsyncEngine) -> None:
    """Until the last cancelled requests have ended, for ten seconds at most."""
    for _ in range(1000):
        load = engine.load()
        if load.num_running + load.num_waiting == 0:
            return
        await asyncio.sleep(0.01)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE


def report(result: Soaked) -> str:
    """The figures of a run."""
    load, hits = result.load, result.counters.prefix_cache
    ends = ", ".join(f"{count} {name}" for name, count in result.tally.ends.most_common())
    num_left = sum(n for name, n in result.tally.ends.items() if name.startswith("left"))
    return (
        f"{result.tally.num_requests} requests in {result.seconds:.0f} s: {ends}\n"
        f"{result.counters.num_steps} steps, {load.num_preemptions} preemptions, "
        f"{hits.num_hit_tokens} of {hits.num_asked_tokens} prompt tokens from the prefix cache, "
        f"{num_left} clients left early\n"
        f"memory slope {result.mb_per_100k:+.3f} MB per 100,000 requests "
        f"(limit {MAX_MB_PER_100K:.0f}), after the first fifth of the run\n"
        f"referenced blocks at the end: {load.num_referenced_blocks}"
    )


def main() -> int:
    """Run and print; 1 when a limit was passed."""
    parser = argparse.ArgumentParser(prog="bench.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=DEFAULT_S, help="default: an hour")
    parser.add_argument("--seed", type=int, default=0, help="of the clients (default: 0)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle = write_toy_bundle(Path(folder) / "toy")
        result = asyncio.run(soak(bundle, arguments.seconds, arguments.seed))
    _say(report(result))
    faults = result.faults()
    for fault in faults:
        _say(f"FAILED: {fault}")
    return 1 if faults else 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
