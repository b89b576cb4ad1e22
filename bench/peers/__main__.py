"""omserve beside its peers: `python -m bench.peers BUNDLE ... --gguf FILE --server NAME=URL`.

Bundles and OpenVINO GenAI run in this process; servers (vLLM, llama.cpp, om-serve itself) are
started before, one at a time being asked. Those of one kind compare, servers with servers.

W1 to W5 of `workloads.py`. Every round runs all of them once, in turn; a peer that is not
installed is skipped with a message. The figures to read are the ratios.

Precision is not quality: the peers' names say which weights and which arithmetic they have.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from statistics import median

from bench.peers.loaded import bundle_peer, server_peer
from bench.peers.peer import Peer, Run
from bench.workloads import SizedWorkload, make_rounds
from omruntime.errors import OmError
from omruntime.traffic.quantiles import quantile


def main() -> int:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(prog="bench.peers", description=__doc__)
    parser.add_argument("bundles", nargs="*", metavar="BUNDLE[@DEVICE]")
    parser.add_argument("--gguf", type=Path, action="append", default=[], help="for GenAI")
    parser.add_argument("--server", action="append", default=[], metavar="NAME=URL")
    parser.add_argument(
        "--tokens-of", type=Path, help="bundle whose tokens the prompts have (default: the first)"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--share", type=float, default=1.0, help="of each workload's requests")
    parser.add_argument("--only", nargs="+", help="workloads to run (default: all)")
    options = parser.parse_args()
    tokens_of = options.tokens_of or next(
        (Path(name.partition("@")[0]) for name in options.bundles), None
    )
    if tokens_of is None:
        parser.error("give a BUNDLE, or --tokens-of BUNDLE beside --server")
    num_threads = len(os.sched_getaffinity(0))
    peers: list[Peer] = [bundle_peer(name) for name in options.bundles]
    peers += _genai_peers(options.gguf, num_threads)
    peers += [server_peer(named_url) for named_url in options.server]
    if not options.server:
        _say("servers (vLLM, llama.cpp): skipped, no --server NAME=URL given")
    _say(f"{num_threads} threads, load {os.getloadavg()[0]:.1f}")
    # The first round warms up: a step's first run in a new shape costs several others.
    rounds = list(islice(make_rounds(tokens_of, options.share), options.rounds + 1))
    try:
        for works in zip(*rounds, strict=True):
            if not options.only or works[0].name in options.only:
                _compare(works, peers)
    except OmError as error:
        _say(f"bench.peers: {error}")
        return 1
    finally:
        for peer in peers:
            peer.close()
    return 0


def _genai_peers(files: list[Path], num_threads: int) -> list[Peer]:
    if importlib.util.find_spec("openvino_genai") is None:
        _say("openvino-genai is not installed: skipped; pip install openvino-genai")
        return []
    if not files:
        _say("openvino-genai: skipped, no --gguf given")
    from bench.peers.genai import GENAI, Genai

    return [Genai(settings, file, num_threads) for file in files for settings in GENAI]


def _compare(works: tuple[SizedWorkload, ...], peers: list[Peer]) -> None:
    """Print output tokens per second, and each over the first; the first of `works` warms up."""
    work, *measured = works
    for peer in peers:
        peer.run(work)
    runs = [[peer.run(w) for peer in peers] for w in measured]
    totals = [sum(w.num_new_tokens) for w in measured]
    rates = [[n / run.seconds for run in each] for n, each in zip(totals, runs, strict=True)]
    _say(f"\n{work.name}: {work.concurrency} at a time, {len(work.prompts)} requests")
    for index, peer in enumerate(peers):
        ratio = median(each[index] / each[0] for each in rates)
        listed = " ".join(f"{each[index]:.1f}" for each in rates)
        _say(
            f"  {peer.name:<48}{median(each[index] for each in rates):>9.1f} tok/s{ratio:>7.2f}"
            f"  ({listed}){_first_tokens(each[index] for each in runs)}"
        )


def _first_tokens(runs: Iterable[Run]) -> str:
    seen = sorted(seconds for run in runs for seconds in run.ttft_s)
    if not seen:
        return ""
    p50, p99 = quantile(seen, 0.5) * 1e3, quantile(seen, 0.99) * 1e3
    return f"  TTFT p50 {p50:.0f} p99 {p99:.0f} ms"


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
