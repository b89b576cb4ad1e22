"""What a decode step costs on the host: `python -m bench.host_overhead`.

Two devices that take no time of their own are put under the engine. The instant one does
nothing, so that what remains is the engine's work; the other is the Ascend device over the
simulated acl with zero delays, whose `launch`, `copy` and `append` are the calls that the host
makes and whose `wait` is the simulator running the toy program.

A third one is busy for a while with every step and needs no core for it. How long it is idle
between two, with and without `--overlap-scheduling`, comes last: two engines by turns.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omruntime.buckets import Bucket, Phase
from omruntime.device import (
    Device,
    DeviceBuffer,
    DeviceTensor,
    MemoryInfo,
    MemoryItem,
    Program,
    open_device,
)
from omruntime.engine import Engine
from omruntime.manifest import ProgramSpec
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import Request
from omruntime.settings import EngineSettings
from tests.omruntime.token_major_toy import write_token_major_toy

ROWS = (1, 8, 32)
VOCAB_SIZE = 49152
PAST_BLOCKS = 160
BUCKETS = (
    *(Bucket(Phase.DECODE, rows, 1, PAST_BLOCKS) for rows in ROWS),
    *(Bucket(Phase.PREFILL, 1, 32, blocks) for blocks in (1, PAST_BLOCKS)),
)
PROMPT_TOKENS = 32
PARTS = ("schedule", "pack", "copy", "launch", "append", "wait", "sample", "update")
BUDGET_MS = {1: 0.3, 32: 1.5}
# Steps of one engine before it is the other's turn: noise that lasts longer meets both.
TURN_STEPS = 10
GREEDY = SamplingParams(
    temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, seed=0,
    max_new_tokens=500, ignore_eos=True,
)  # fmt: skip


class InstantBuffer:
    """Memory that is not there."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


class InstantProgram:
    """Nothing to run."""

    def bind(
        self,
        bucket: Bucket,
        inputs: Mapping[str, DeviceTensor],
        outputs: Mapping[str, DeviceTensor],
    ) -> None:
        """See `Program.bind`."""

    def run(self, bucket: Bucket) -> None:
        """See `Program.run`."""

    def unload(self) -> None:
        """See `Program.unload`."""


class InstantDevice:
    """A device that is done before it begins; every logit is 0."""

    name = "instant"
    alignment = 64
    prepares_buckets = True
    runs_asynchronously = False

    def __init__(self, soc: str) -> None:
        self.soc = soc
        self._arrays: dict[tuple[int, ...], NDArray[Any]] = {}

    def alloc(self, nbytes: int) -> DeviceBuffer:
        """See `Device.alloc`."""
        return InstantBuffer(nbytes)

    def reserved_bytes(self, nbytes: int) -> int:
        """See `Device.reserved_bytes`."""
        return nbytes

    def free(self, buffer: DeviceBuffer) -> None:
        """See `Device.free`."""

    def host_array(self, nbytes: int) -> NDArray[np.uint8]:
        """See `Device.host_array`."""
        return np.zeros(nbytes, np.uint8)

    def copy_in(self, target: DeviceTensor, source: NDArray[Any]) -> None:
        """See `Device.copy_in`."""

    def copy_out(self, source: DeviceTensor) -> NDArray[Any]:
        """See `Device.copy_out`; zeros."""
        if source.shape not in self._arrays:
            self._arrays[source.shape] = np.zeros(source.shape, source.dtype)
        return self._arrays[source.shape]

    def copy_chunks(
        self,
        target: DeviceTensor,
        target_chunks: NDArray[np.int64],
        source: DeviceTensor,
        source_chunks: NDArray[np.int64],
        chunk_bytes: int,
    ) -> None:
        """See `Device.copy_chunks`."""

    def clear(self, target: DeviceTensor) -> None:
        """See `Device.clear`."""

    def plan_programs(self, specs: Iterable[ProgramSpec], bundle: Path) -> tuple[MemoryItem, ...]:
        """See `Device.plan_programs`."""
        return ()

    def load_program(self, spec: ProgramSpec, bundle: Path) -> Program:
        """See `Device.load_program`."""
        return InstantProgram()

    def synchronize(self) -> None:
        """See `Device.synchronize`."""

    def memory_info(self) -> MemoryInfo:
        """See `Device.memory_info`."""
        return MemoryInfo(1 << 40, 1 << 40)

    def close(self) -> None:
        """See `Device.close`."""


class BusyProgram(InstantProgram):
    """Keeps its device busy."""

    def __init__(self, device: BusyDevice) -> None:
        self._device = device

    def run(self, bucket: Bucket) -> None:
        """See `Program.run`."""
        self._device.launch()


class BusyDevice(InstantDevice):
    """Works on each step for a fixed time, without the host.

    Attributes:
        idle_s: Seconds from the end of each wait to the next launch.
    """

    name = "busy"
    runs_asynchronously = True

    def __init__(self, soc: str, work_s: float) -> None:
        super().__init__(soc)
        self.idle_s: list[float] = []
        self._work_s = work_s
        self._done_at = self._waited_at = 0.0

    def load_program(self, spec: ProgramSpec, bundle: Path) -> Program:
        """See `Device.load_program`."""
        return BusyProgram(self)

    def launch(self) -> None:
        """Begin a step."""
        now = perf_counter()
        self.idle_s.append(now - self._waited_at)
        self._done_at = now + self._work_s

    def synchronize(self) -> None:
        """See `Device.synchronize`."""
        time.sleep(max(0.0, self._done_at - perf_counter()))
        self._waited_at = perf_counter()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.host_overhead", description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="decode steps (default 300)")
    parser.add_argument("--work-ms", type=float, default=3.0, help="of the busy device (default 3)")
    arguments = parser.parse_args()
    steps = arguments.steps
    with tempfile.TemporaryDirectory() as folder:
        num_blocks = max(ROWS) * PAST_BLOCKS + 1
        bundle = write_token_major_toy(
            Path(folder), num_blocks=num_blocks, buckets=BUCKETS, vocab_size=VOCAB_SIZE
        )
        _say(f"decode step, medians in ms over {steps} steps; vocabulary {VOCAB_SIZE}, greedy")
        _say(f"{'':<16}" + "".join(f"{part:>10}" for part in PARTS) + f"{'step':>10}")
        for rows in ROWS:
            for device in (InstantDevice("Ascend310P3"), open_device("sim:0")):
                _say(_line(device, bundle, rows, steps))
            if rows in BUDGET_MS:
                _say(f"  (budget of a step on the instant device: {BUDGET_MS[rows]} ms)")
        _say(f"idle between two steps of {arguments.work_ms:g} ms, medians in ms")
        _say(f"{'rows':<8}{'one by one':>12}{'overlapped':>12}{'ratio':>8}")
        for rows in ROWS:
            _say(_idle_line(bundle, rows, steps, arguments.work_ms / 1e3))
    return 0


def _line(device: Device, bundle: Path, rows: int, steps: int) -> str:
    engine = _decoding(device, bundle, EngineSettings(max_num_seqs=rows))
    samples = [_timed_step(engine) for _ in range(steps)]
    engine.abort_all()
    name = f"{device.name} x{rows}"
    engine.close()
    medians = [median(sample.get(part, 0.0) for sample in samples) for part in (*PARTS, "step")]
    return f"{name:<16}" + "".join(f"{seconds * 1e3:>10.3f}" for seconds in medians)


def _idle_line(bundle: Path, rows: int, steps: int, work_s: float) -> str:
    idle_s: dict[bool, list[float]] = {False: [], True: []}
    devices = {overlaps: BusyDevice("Ascend310P3", work_s) for overlaps in idle_s}
    engines = {
        overlaps: _decoding(
            device, bundle, EngineSettings(max_num_seqs=rows, overlap_scheduling=overlaps)
        )
        for overlaps, device in devices.items()
    }
    for _ in range(steps // TURN_STEPS):
        for overlaps, engine in engines.items():
            for _ in range(TURN_STEPS):
                engine.step()
            # The first one waited for the other engine.
            idle_s[overlaps] += devices[overlaps].idle_s[1 - TURN_STEPS :]
    for engine in engines.values():
        engine.abort_all()
        engine.close()
    before, after = (median(idle_s[overlaps]) * 1e3 for overlaps in (False, True))
    return f"{rows:<8}{before:>12.3f}{after:>12.3f}{after / before:>8.2f}"


def _decoding(device: Device, bundle: Path, settings: EngineSettings) -> Engine:
    """An engine with as many answers under way as it runs at once."""
    rows = settings.max_num_seqs
    assert rows is not None
    engine = Engine(device, bundle, settings)
    engine.warm_up(lambda index, count, bucket: None)
    for i in range(rows):
        prompt = tuple((7 * i + j) % 50 + 1 for j in range(PROMPT_TOKENS))
        engine.add(Request(f"r{i}", prompt, GREEDY))
    while engine.num_waiting or engine.load().num_running < rows:
        engine.step()
    for _ in range(20):
        engine.step()
    return engine


def _timed_step(engine: Engine) -> dict[str, float]:
    """Seconds of one step, by part and in all."""
    engine.profiler.reset()
    start = perf_counter()
    outputs = engine.step()
    seconds = perf_counter() - start
    assert outputs, "a step without tokens"
    return {**engine.profiler.seconds(), "step": seconds}


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
