"""What a device process of its own costs: `python -m bench.isolation [BUNDLE]`.

The same requests over an engine in a thread and over one in a process, in alternating rounds of
this run. Without a bundle the toy model is served, whose step takes next to nothing, so that the
ratio is the worst there is: it shows what crossing costs for each step and token.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from omruntime.async_engine import AsyncEngine
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import Request
from omruntime.settings import EngineSettings
from omruntime.worker.worker_engine import WorkerEngine
from tests.omruntime.toy_model import write_toy_bundle

ROWS = (1, 4, 16)
NUM_NEW_TOKENS = 56
GREEDY = SamplingParams(
    temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, seed=0,
    max_new_tokens=NUM_NEW_TOKENS, ignore_eos=True,
)  # fmt: skip


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.isolation", description=__doc__)
    parser.add_argument("bundle", nargs="?", type=Path, help="default: the toy model")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--requests", type=int, default=20, help="requests a row (default 20)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle = arguments.bundle or write_toy_bundle(Path(folder) / "bundle")
        asyncio.run(_compare(bundle, arguments.rounds, arguments.requests))
    return 0


async def _compare(bundle: Path, num_rounds: int, num_requests: int) -> None:
    settings = EngineSettings(num_threads=1, cache_dir=Path(tempfile.gettempdir()) / "no-costs")
    engines = (AsyncEngine.open(bundle, settings), WorkerEngine.open(bundle, settings))
    for engine in engines:
        await asyncio.to_thread(engine.start, lambda _line: None)
    _say(f"{'rows':>4}{'thread tokens/s':>18}{'process tokens/s':>18}{'ratio':>8}{'us/step':>9}")
    try:
        for num_rows in ROWS:
            rounds = [
                [await _tokens_per_s(engine, num_rows, num_requests) for engine in engines]
                for _ in range(num_rounds)
            ]
            thread, process = (median(each) for each in zip(*rounds, strict=True))
            # Every row gets one token a step.
            more_us = (num_rows / process - num_rows / thread) * 1e6
            _say(
                f"{num_rows:>4}{thread:>18.0f}{process:>18.0f}{process / thread:>8.2f}"
                f"{more_us:>9.0f}"
            )
    finally:
        for engine in engines:
            await asyncio.to_thread(engine.stop)


async def _tokens_per_s(
    engine: AsyncEngine | WorkerEngine, num_rows: int, num_requests: int
) -> float:
    async def ask(row: int) -> None:
        for i in range(num_requests):
            request = Request(f"{row}/{i}", (row + 1, i % 50 + 1, 3), GREEDY)
            async for _ in await engine.submit(request):
                pass

    start = perf_counter()
    await asyncio.gather(*(ask(row) for row in range(num_rows)))
    return num_rows * num_requests * NUM_NEW_TOKENS / (perf_counter() - start)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
