"""Steps of several bundles against each other: `python -m bench.executors BUNDLE[@DEVICE] ...`.

Each step runs on scattered blocks of a full pool, all bundles in turn, and the best of many rounds
counts, so that whatever else the machine does meets all of them. The figures to read are the
ratios to the first bundle.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omruntime.blocks.kv_cache import KVCache
from omruntime.buckets import Bucket, Phase
from omruntime.device import Device, DeviceTensor, open_device
from omruntime.manifest import Manifest

NUM_BLOCKS = 1200


@dataclass(frozen=True, slots=True)
class Case:
    """One step: new tokens for each row, over so many cached ones."""

    phase: Phase
    rows: int
    tokens: int
    past: int

    def __str__(self) -> str:
        what = f"{self.rows} rows" if self.phase is Phase.DECODE else f"{self.tokens} tokens"
        return f"{self.phase.value} {what}, {self.past} cached"


CASES = (
    Case(Phase.DECODE, 1, 1, 128),
    Case(Phase.DECODE, 8, 1, 128),
    Case(Phase.DECODE, 8, 1, 512),
    Case(Phase.DECODE, 32, 1, 256),
    Case(Phase.PREFILL, 1, 64, 0),
    Case(Phase.PREFILL, 1, 256, 0),
    Case(Phase.PREFILL, 1, 256, 768),
)


class Contender:
    """One bundle on one device."""

    def __init__(self, name: str, num_threads: int) -> None:
        path, _, device_name = name.partition("@")
        bundle, manifest = Path(path), Manifest.read(Path(path))
        default = "openvino" if manifest.kv.dtype == "bfloat16" else "cpu"
        self.name = f"{bundle.name}@{device_name or default}"
        self._manifest = manifest
        self._table = manifest.bucket_table()
        self._device: Device = open_device(device_name or default, num_threads)
        self._cache = KVCache(self._device, manifest.model, manifest.kv, NUM_BLOCKS)
        (self._spec,) = manifest.programs
        start = time.perf_counter()
        self._program = self._device.load_program(self._spec, bundle)
        self.load_s = time.perf_counter() - start

    def prepare(self, case: Case) -> Bucket:
        """Bind the bucket of a case over scattered blocks."""
        block_size = self._manifest.kv.block_size
        bucket = self._table.pick(
            case.phase, case.rows, case.tokens, max(1, -(-case.past // block_size))
        )
        assert bucket is not None, f"{self.name} has no bucket for {case}"
        inputs = {name: self._filled(a) for name, a in _arrays(case, bucket).items()}
        sizes = {"batch": bucket.batch, "new_tokens": bucket.batch * bucket.tokens}
        outputs = {}
        for spec in self._spec.outputs:
            shape = tuple(sizes[d] if isinstance(d, str) else d for d in spec.shape)
            outputs[spec.name] = self._reserved(shape, spec.dtype)
        self._program.bind(bucket, {**self._cache.pool_inputs(), **inputs}, outputs)
        return bucket

    def seconds(self, bucket: Bucket) -> float:
        """Run a prepared bucket once."""
        start = time.perf_counter()
        self._program.run(bucket)
        self._device.synchronize()
        return time.perf_counter() - start

    def _reserved(self, shape: tuple[int, ...], dtype: str) -> DeviceTensor:
        probe = DeviceTensor(self._device.alloc(1), 0, shape, dtype)
        return DeviceTensor(self._device.alloc(probe.nbytes), 0, shape, dtype)

    def _filled(self, array: NDArray[np.int32]) -> DeviceTensor:
        tensor = self._reserved(array.shape, "int32")
        self._device.copy_in(tensor, array)
        return tensor


def _arrays(case: Case, bucket: Bucket) -> dict[str, NDArray[np.int32]]:
    rng = np.random.default_rng(0)
    shape = (bucket.batch, bucket.tokens)
    positions = np.broadcast_to(case.past + np.arange(bucket.tokens), shape)
    return {
        "input_ids": rng.integers(0, 1000, shape).astype(np.int32),
        "positions": np.ascontiguousarray(positions, np.int32),
        "block_tables": rng.integers(1, NUM_BLOCKS, (bucket.batch, bucket.past_blocks)).astype(
            np.int32
        ),
        "past_lens": np.full(bucket.batch, case.past, np.int32),
        "last_index": np.full(bucket.batch, bucket.tokens - 1, np.int32),
    }


def main() -> int:
    """Run every case and print the table."""
    parser = argparse.ArgumentParser(prog="bench.executors", description=__doc__)
    parser.add_argument("bundles", nargs="+", metavar="BUNDLE[@DEVICE]")
    parser.add_argument("--rounds", type=int, default=12, help="runs of each step (default 12)")
    parser.add_argument("--num-threads", type=int, default=0, help="0: one for each core")
    options = parser.parse_args()
    contenders = [Contender(name, options.num_threads) for name in options.bundles]
    for contender in contenders:
        _say(f"{contender.name}: loaded in {contender.load_s:.1f} s")
    _say("\nms of the first, then how many times as fast the others are")
    _say(f"{'':<34}" + "".join(f"{c.name:>26}" for c in contenders))
    for case in CASES:
        buckets = [contender.prepare(case) for contender in contenders]
        best = _best_seconds(contenders, buckets, options.rounds)
        ratios = "".join(f"{best[0] / s:>26.2f}" for s in best[1:])
        _say(f"{case!s:<34}{best[0] * 1e3:>26.1f}{ratios}")
    return 0


def _best_seconds(contenders: list[Contender], buckets: list[Bucket], rounds: int) -> list[float]:
    pairs = list(zip(contenders, buckets, strict=True))
    for contender, bucket in pairs:
        contender.seconds(bucket)
    times = [[contender.seconds(bucket) for contender, bucket in pairs] for _ in range(rounds)]
    return [min(column) for column in zip(*times, strict=True)]


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
