"""Replay on a real engine: a trace in real time, what callers saw of it, what steps padded."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from omruntime.costs.cost_table import CostTable
from omruntime.device import open_device
from omruntime.engine import Engine
from omruntime.manifest import Manifest
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.phase_policy import Targets
from omruntime.scheduling.scheduler import SchedulerOptions
from omruntime.sequence import FinishReason, Request
from omruntime.settings import EngineSettings
from omruntime.simulate.replay import Measured, Replayed, policies
from omruntime.simulate.trace import TracedRequest

SETTINGS = EngineSettings(enable_prefix_cache=False, kv_memory_mib=512)


@contextmanager
def engines(bundle: Path, device: str, targets: Targets) -> Iterator[dict[str, Engine]]:
    """One warm engine for each policy, all in memory at once, so that they can alternate."""
    manifest = Manifest.read(bundle)
    table = manifest.bucket_table()
    names = policies(table, CostTable(table, table.block_size), targets)
    opened: dict[str, Engine] = {}
    try:
        for name in names:
            opened[name] = _open(bundle, device, name, targets)
        yield opened
    finally:
        for engine in opened.values():
            engine.close()


def _open(bundle: Path, device: str, policy: str, targets: Targets) -> Engine:
    table = Manifest.read(bundle).bucket_table()

    def options_of(_settings: EngineSettings, costs: CostTable) -> SchedulerOptions:
        return policies(table, costs, targets)[policy]

    engine = Engine(open_device(device, 0), bundle, SETTINGS, options_of)
    engine.warm_up(lambda index, count, bucket: None)
    return engine


class LiveReplay:
    """One run; the calling thread is the engine's."""

    def __init__(self, engine: Engine, trace: list[TracedRequest]) -> None:
        self._engine = engine
        self._trace = trace
        self._coming = deque(sorted(enumerate(trace), key=lambda each: each[1].arrival_s))
        self._result = Replayed([Measured(r.arrival_s) for r in trace])
        self._start = 0.0

    def run(self) -> Replayed:
        """To the end of the last answer."""
        before, preempted = self._engine.counters(), self._engine.load().num_preemptions
        self._start = time.monotonic()
        while self._coming or self._engine.has_work:
            self._add_arrivals()
            if self._engine.has_work:
                self._step()
            else:
                time.sleep(max(0.0, self._coming[0][1].arrival_s - self._now()))
        after, result = self._engine.counters(), self._result
        result.duration_s = self._now()
        result.num_steps = after.num_steps - before.num_steps
        result.num_useful = after.num_computed_tokens - before.num_computed_tokens
        result.num_padded = after.num_step_places - before.num_step_places
        result.num_preemptions = self._engine.load().num_preemptions - preempted
        return result

    def _now(self) -> float:
        return time.monotonic() - self._start

    def _add_arrivals(self) -> None:
        while self._coming and self._coming[0][1].arrival_s <= self._now():
            index, traced = self._coming.popleft()
            self._engine.add(self._request(index, traced), self._start + traced.arrival_s)

    def _step(self) -> None:
        for request_id, delta in self._engine.step():
            index = int(request_id)
            times = self._result.requests[index].token_times
            times += [self._now()] * len(delta.token_ids)
            # As a stop string does: nobody knew the answer's length before.
            is_last = len(times) >= self._trace[index].num_output_tokens
            if is_last and delta.finish_reason is None:
                self._engine.abort(request_id, FinishReason.STOP)

    def _request(self, index: int, traced: TracedRequest) -> Request:
        """Words at random, so that no prompt begins like another."""
        draw = random.Random(index)  # noqa: S311 - must be repeatable
        model = self._engine.manifest.model
        prompt = tuple(draw.randrange(model.vocab_size) for _ in range(traced.num_prompt_tokens))
        params = SamplingParams(temperature=0.0, ignore_eos=True)
        return Request(str(index), prompt, params.resolve(model.sampling_defaults))


def live_saturation(engine: Engine, trace: list[TracedRequest]) -> float:
    """Requests a second when all are there from the start."""
    waiting = [replace(traced, arrival_s=0.0) for traced in trace]
    return len(trace) / LiveReplay(engine, waiting).run().duration_s
