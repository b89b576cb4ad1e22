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
    parser.add_argument(
        "--device",
        default="cpu",
        choices=["cpu", "native"],
        help="what runs the steps; where their time goes is shown for cpu (default cpu)",
    )
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    checkpoint, bundle = fetch_weights(SMOLLM2), FOLDER / "smollm2"
    ensure_bundle(checkpoint, bundle, ("--name", "SmolLM2-135M-Instruct"))
    works = asyncio.run(_compare(checkpoint, bundle, arguments.rounds, arguments.device))
    if arguments.device != "cpu":
        return 0
    _print_layers(bundle, works, arguments.rounds)
    _print_time_split(bundle, works)
    return 0


async def _compare(checkpoint: Path, bundle: Path, rounds: int, device: str) -> list[Workload]:
    """Output tokens per second over gRPC and with HF, interleaved; prints the ratios."""
    num_threads = len(os.sched_getaffinity(0))
    _say(
        f"SmolLM2-135M-Instruct, float32 on {device}, {num_threads} threads, "
        f"{NUM_NEW_TOKENS} new tokens"
    )
    peer = HfPeer(checkpoint, num_threads)
    works = []
    async with (
        running_server(bundle, FOLDER / "bench-server.log", "--device", device) as target,
        AsyncClient(target) as client,
    ):
        _say("\noutput tokens/s     omserve (gRPC)   HF generate   ratio   (median; each round)")
        numbers = count()
        for concurrency in CONCURRENCIES:
            pairs = []
            for _ in range(rounds):
                works.append(await _workload(client, concurrency, numbers))
                ours = await run_over_grpc(client, works[-1])
                pairs.append((ours, await asyncio.to_thread(peer.run, works[-1])))
            _say(_ratio_line(works[-1], pairs))
    return works[rounds - 1 :: rounds]


async def _workload(client: AsyncClient, concurrency: int, numbers: Iterator[int]) -> Workload:
    """Questions that were never asked before: the prefix cache finds the system prompt only."""
    questions = [question(number) for number in islice(numbers, num_requests(concurrency))]
    chats = [await client.tokenize([ChatMessage("user", text)]) for text in questions]
    return Workload(concurrency, tuple(chats))


def _ratio_line(work: Workload, pairs: list[tuple[float, float]]) -> str:
    ours, theirs = median(o for o, _ in pairs), median(t for _, t in pairs)
    ratio = median(o / t for o, t in pairs)
    rounds = " ".join(f"{o / t:.2f}" for o, t in pairs)
    name = f"concurrency {work.concurrency}"
    return f"{name:<20}{ours:>14.1f}{theirs:>14.1f}{ratio:>8.2f}   ({rounds})"


def _print_layers(bundle: Path, works: list[Workload], rounds: int) -> None:
    """What each layer above the engine costs, in process."""
    _say("\noutput tokens/s     token ids   text   text costs")
    for work in works:
        settings = _settings(work)
        with TokenLLM(bundle, settings) as tokens, TextLLM(bundle, settings) as text:
            run_tokens(tokens, work)
            pairs = [(run_tokens(tokens, work), run_text(text, work)) for _ in range(rounds)]
        ids, texts = median(i for i, _ in pairs), median(t for _, t in pairs)
        cost = median(1 - t / i for i, t in pairs)
        _say(f"concurrency {work.concurrency:<8}{ids:>9.1f}{texts:>9.1f}{cost:>9.1%}")


def _settings(work: Workload) -> EngineSettings:
    """As many rows as the workload has requests at a time, and nothing kept between rounds."""
    return EngineSettings(max_num_seqs=work.concurrency, enable_prefix_cache=False)


def _print_time_split(bundle: Path, works: list[Workload]) -> None:
    """The engine thread's time by part, and the graph's by kind of node."""
    for work in works:
        device = ProfilingCpuDevice(0)
        with TokenLLM(bundle, _settings(work), device) as llm:
            run_tokens(llm, work)
            parts = llm.profiler.seconds()
            nodes = device.seconds_by_part()
        _say(f"\nengine thread at concurrency {work.concurrency}, profiled:")
        _print_shares(parts.items())
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
