"""OpenVINO GenAI over a GGUF file, in this process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.peer import Run
from bench.workloads import SizedWorkload

CACHE_GIB = 1


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


@dataclass(slots=True)
class _Live:
    """A request under way: its handle, tokens it wants and tokens that are left."""

    handle: Any
    wanted: int
    left: int
    sent: float


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

    def run(self, work: SizedWorkload) -> Run:
        """See `Peer.run`."""
        start = time.perf_counter()
        todo = list(zip(work.prompts, work.num_new_tokens, strict=True))[::-1]
        live: dict[int, _Live] = {}
        ttft_s = []
        while todo or live:
            while todo and len(live) < work.concurrency:
                live[self._next_id] = self._submit(*todo.pop())
            self._pipe.step()
            for key, request in list(live.items()):
                had_none = request.left == request.wanted
                while request.handle.can_read():
                    read = request.handle.read().values()
                    request.left -= sum(len(output.generated_ids) for output in read)
                if had_none and request.left < request.wanted:
                    ttft_s.append(time.perf_counter() - request.sent)
                if request.left <= 0:
                    del live[key]
        return Run(time.perf_counter() - start, tuple(ttft_s))

    def close(self) -> None:
        """See `Peer.close`."""
        del self._pipe

    def _submit(self, prompt: tuple[int, ...], num_new_tokens: int) -> _Live:
        import openvino as ov

        config = self._genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = num_new_tokens
        config.ignore_eos, config.do_sample = True, False
        self._next_id += 1
        ids = ov.Tensor(np.array([prompt], np.int64))
        sent = time.perf_counter()
        handle = self._pipe.add_request(self._next_id, ids, config)
        return _Live(handle, num_new_tokens, num_new_tokens, sent)
