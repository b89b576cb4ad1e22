"""`make bench`: omserve against Hugging Face `generate`, both measured in this run.

Alternatives alternate, so that whatever else the machine does meets all of them; the figures
to read are the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from itertools import count, islice
from pathlib import Path
from statistics import median

from bench.graph_time import ProfilingCpuDevice
from bench.hf_peer import HfPeer
from bench.ours import run_over_grpc, run_text, run_tokens
from bench.prompts import NUM_NEW_TOKENS, Workload, num_requests, question
from demo.bundle_cache import ensure_bundle
from demo.fetch_weights import SMOLLM2, fetch_weights
from demo.processes import ROOT
from demo.server_process import running_server
from omruntime.llm import LLM as TokenLLM
from omruntime.native import find_library
from omruntime.settings import EngineSettings
from server.client import AsyncClient
from server.llm import LLM as TextLLM
from server.text import ChatMessage

CONCURRENCIES = (1, 8, 16)
FOLDER = ROOT / ".cache" / "demo"


def main() -> int:
    """Run everything and print the report."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    devices = ["cpu", "native"] if find_library() else ["cpu"]
    parser.add_argument(
        "--devices",
        default=devices,
        nargs="+",
        choices=["cpu", "native"],
        help=f"what runs the steps (default: {' '.join(devices)}, all that is installed)",
    )
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    checkpoint, bundle = fetch_weights(SMOLLM2), FOLDER / "smollm2"
    ensure_bundle(checkpoint, bundle, ("--name", "SmolLM2-135M-Instruct"))
    works = asyncio.run(_compare(checkpoint, bundle, arguments.rounds, arguments.devices))
    for device in arguments.devices:
        _print_layers(bundle, device, works, arguments.rounds)
        _print_time_split(bundle, device, works)
    return 0


async def _compare(
    checkpoint: Path, bundle: Path, rounds: int, devices: list[str]
) -> list[Workload]:
    """Output tokens per second over gRPC and with HF, interleaved; prints the ratios."""
    num_threads = len(os.sched_getaffinity(0))
    _say(f"SmolLM2-135M-Instruct, float32, {num_threads} threads, {NUM_NEW_TOKENS} new tokens")
    peer = HfPeer(checkpoint, num_threads)
    works = []
    async with AsyncExitStack() as stack:
        clients = {name: await _served(stack, bundle, name) for name in devices}
        _say("\noutput tokens/s       device   omserve (gRPC)   HF generate   ratio   (each round)")
        numbers = count()
        for concurrency in CONCURRENCIES:
            rates = []
            for _ in range(rounds):
                works.append(await _workload(clients[devices[0]], concurrency, numbers))
                ours = [await run_over_grpc(client, works[-1]) for client in clients.values()]
                rates.append((*ours, await asyncio.to_thread(peer.run, works[-1])))
            for index, device in enumerate(devices):
                pairs = [(round_rates[index], round_rates[-1]) for round_rates in rates]
                _say(_ratio_line(concurrency, device, pairs))
    return works[rounds - 1 :: rounds]


async def _served(stack: AsyncExitStack, bundle: Path, device: str) -> AsyncClient:
    """A client of a server of its own, which takes no time while nobody asks."""
    log = FOLDER / f"bench-server-{device}.log"
    target = await stack.enter_async_context(running_server(bundle, log, "--device", device))
    return await stack.enter_async_context(AsyncClient(target))


async def _workload(client: AsyncClient, concurrency: int, numbers: Iterator[int]) -> Workload:
    """Questions that were never asked before: the prefix cache finds the system prompt only."""
    questions = [question(number) for number in islice(numbers, num_requests(concurrency))]
    chats = [await client.tokenize([ChatMessage("user", text)]) for text in questions]
    return Workload(concurrency, tuple(chats))


def _ratio_line(concurrency: int, device: str, pairs: list[tuple[float, float]]) -> str:
    """Medians, and the ratio of each round."""
    ours, theirs = median(o for o, _ in pairs), median(t for _, t in pairs)
    ratio = median(o / t for o, t in pairs)
    rounds = " ".join(f"{o / t:.2f}" for o, t in pairs)
    name = f"concurrency {concurrency}"
    return f"{name:<22}{device:<9}{ours:>14.1f}{theirs:>14.1f}{ratio:>8.2f}   ({rounds})"


def _print_layers(bundle: Path, device: str, works: list[Workload], rounds: int) -> None:
    """What each layer above the engine costs, in process."""
    _say(f"\noutput tokens/s on {device:<8} token ids   text   text costs")
    for work in works:
        settings = _settings(work, device)
        with TokenLLM(bundle, settings) as tokens, TextLLM(bundle, settings) as text:
            run_tokens(tokens, work)
            pairs = [(run_tokens(tokens, work), run_text(text, work)) for _ in range(rounds)]
        ids, texts = median(i for i, _ in pairs), median(t for _, t in pairs)
        cost = median(1 - t / i for i, t in pairs)
        _say(f"concurrency {work.concurrency:<16}{ids:>9.1f}{texts:>9.1f}{cost:>9.1%}")


def _settings(work: Workload, device: str) -> EngineSettings:
    """As many rows as the workload has requests at a time, and nothing kept between rounds."""
    return EngineSettings(device=device, max_num_seqs=work.concurrency, enable_prefix_cache=False)


def _print_time_split(bundle: Path, device: str, works: list[Workload]) -> None:
    """The engine thread's time by part; on cpu, which can tell, the graph's by kind of node."""
    for work in works:
        profiling = ProfilingCpuDevice(0) if device == "cpu" else None
        with TokenLLM(bundle, _settings(work, device), profiling) as llm:
            run_tokens(llm, work)
            parts = llm.profiler.seconds()
            nodes = profiling.seconds_by_part() if profiling else {}
        _say(f"\nengine thread on {device} at concurrency {work.concurrency}, profiled:")
        _print_shares(parts.items())
        if nodes:
            _say("  of the graph's nodes:")
            _print_shares(nodes.items())


def _print_shares(parts: Iterable[tuple[str, float]]) -> None:
    ordered = sorted(parts, key=lambda part: -part[1])
    total = sum(seconds for _, seconds in ordered)
    for name, seconds in ordered:
        _say(f"  {name:<36}{seconds:>8.3f} s{seconds / total:>8.1%}")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
