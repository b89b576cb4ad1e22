"""omserve against OpenVINO GenAI, both in process: `python -m bench.peers BUNDLE ... --gguf FILE`.

W1 to W5 of `workloads.py`. Every round runs all of them once, in turn; a peer that is not
installed is skipped with a message. The figures to read are the ratios.

Precision is not quality: the peers' names say which weights and which arithmetic they have.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np

from bench.workloads import SizedWorkload, make_rounds
from omruntime.llm import LLM
from omruntime.manifest import Manifest
from omruntime.sampling_params import SamplingParams
from omruntime.settings import EngineSettings

CACHE_GIB = 1


class Peer(Protocol):
    """Something that answers workloads in this process."""

    name: str

    def run(self, work: SizedWorkload) -> float:
        """Answer all prompts; the seconds that it took."""
        ...


class Ours:
    """A bundle in omserve."""

    def __init__(self, name: str, num_threads: int) -> None:
        path, _, device = name.partition("@")
        manifest = Manifest.read(Path(path))
        default = "openvino" if manifest.kv.dtype == "bfloat16" else "cpu"
        self.name = f"omserve {manifest.model.dtype}@{device or default}"
        settings = EngineSettings(
            device=device or default, num_threads=num_threads, kv_memory_mib=1024 * CACHE_GIB
        )
        self._llm = LLM(path, settings)

    def run(self, work: SizedWorkload) -> float:
        """See `Peer.run`."""
        params = [
            SamplingParams(temperature=0.0, max_new_tokens=n, ignore_eos=True)
            for n in work.num_new_tokens
        ]
        start = time.perf_counter()
        for first in range(0, len(work.prompts), _in_flight(work)):
            part = slice(first, first + _in_flight(work))
            self._llm.generate(work.prompts[part], params[part], progress=False)
        return time.perf_counter() - start


def _in_flight(work: SizedWorkload) -> int:
    """One at a time where the workload says so; else the engine's own rows are the limit."""
    return 1 if work.concurrency == 1 else len(work.prompts)


@dataclass(frozen=True, slots=True)
class GenaiSettings:
    """One way to run the same GGUF file."""

    name: str
    properties: dict[str, str]


GENAI = (
    GenaiSettings(
        "genai own weights, float32",
        {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"},
    ),
    GenaiSettings("genai own weights, default", {}),
)


class Genai:
    """OpenVINO GenAI's continuous batching over a GGUF file."""

    def __init__(self, settings: GenaiSettings, gguf: Path, num_threads: int) -> None:
        import openvino_genai as genai

        self.name = f"{settings.name} ({gguf.stem.rpartition('.')[2] or gguf.stem})"
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIB
        scheduler.max_num_batched_tokens = 256
        scheduler.max_num_seqs = 32
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = True
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": num_threads, **settings.properties}
        self._genai: Any = genai
        self._pipe = genai.ContinuousBatchingPipeline(str(gguf), scheduler, "CPU", properties, {})
        self._next_id = 0

    def run(self, work: SizedWorkload) -> float:
        """See `Peer.run`."""
        start = time.perf_counter()
        todo = list(zip(work.prompts, work.num_new_tokens, strict=True))[::-1]
        live: dict[int, tuple[Any, int]] = {}
        while todo or live:
            while todo and len(live) < work.concurrency:
                live[self._next_id] = self._submit(*todo.pop())
            self._pipe.step()
            for key, (handle, left) in list(live.items()):
                while handle.can_read():
                    left -= sum(len(o.generated_ids) for o in handle.read().values())
                live[key] = (handle, left)
                if left <= 0:
                    del live[key]
        return time.perf_counter() - start

    def _submit(self, prompt: tuple[int, ...], num_new_tokens: int) -> tuple[Any, int]:
        import openvino as ov

        config = self._genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = num_new_tokens
        config.ignore_eos, config.do_sample = True, False
        self._next_id += 1
        ids = ov.Tensor(np.array([prompt], np.int64))
        return self._pipe.add_request(self._next_id, ids, config), num_new_tokens


def main() -> int:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(prog="bench.peers", description=__doc__)
    parser.add_argument("bundles", nargs="+", metavar="BUNDLE[@DEVICE]")
    parser.add_argument("--gguf", type=Path, action="append", default=[], help="for the peers")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--share", type=float, default=1.0, help="of each workload's requests")
    parser.add_argument("--only", nargs="+", help="workloads to run (default: all)")
    options = parser.parse_args()
    num_threads = len(os.sched_getaffinity(0))
    peers: list[Peer] = [Ours(name, num_threads) for name in options.bundles]
    peers += _genai_peers(options.gguf, num_threads)
    _say(f"{num_threads} threads, load {os.getloadavg()[0]:.1f}")
    bundle = Path(options.bundles[0].partition("@")[0])
    # The first round warms up: a step's first run in a new shape costs several others.
    rounds = list(islice(make_rounds(bundle, options.share), options.rounds + 1))
    for works in zip(*rounds, strict=True):
        if not options.only or works[0].name in options.only:
            _compare(works, peers)
    return 0


def _genai_peers(files: list[Path], num_threads: int) -> list[Peer]:
    if importlib.util.find_spec("openvino_genai") is None:
        _say("openvino-genai is not installed: skipped; pip install openvino-genai")
        return []
    if not files:
        _say("openvino-genai: skipped, no --gguf given")
    return [Genai(settings, file, num_threads) for file in files for settings in GENAI]


def _compare(works: tuple[SizedWorkload, ...], peers: list[Peer]) -> None:
    """Print output tokens per second, and each over the first; the first of `works` warms up."""
    work, *measured = works
    for peer in peers:
        peer.run(work)
    runs = [[sum(w.num_new_tokens) / peer.run(w) for peer in peers] for w in measured]
    _say(f"\n{work.name}: {work.concurrency} at a time, {len(work.prompts)} requests")
    for index, peer in enumerate(peers):
        ratio = median(run[index] / run[0] for run in runs)
        each = " ".join(f"{run[index]:.1f}" for run in runs)
        _say(
            f"  {peer.name:<48}{median(r[index] for r in runs):>9.1f} tok/s{ratio:>7.2f}  ({each})"
        )


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
