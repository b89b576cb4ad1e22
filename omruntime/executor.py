"""GraphExecutor: runs a StepPlan on a device.

Owns the loaded programs, the staging arrays and the I/O buffers. Knows neither why the
scheduler planned a step nor what the sampler makes of the logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omruntime.buckets import Bucket
from omruntime.device.base import Device, DeviceBuffer, DeviceTensor, Program
from omruntime.inputs import HostInputs, map_slots, pack_inputs
from omruntime.kv_cache import KVCache
from omruntime.manifest import Manifest, ProgramSpec, TensorSpec
from omruntime.profiler import StepProfiler
from omruntime.step import StepPlan


class GraphExecutor:
    """Runs steps; everything is loaded, bound and allocated before the first one."""

    def __init__(
        self,
        device: Device,
        manifest: Manifest,
        bundle: Path,
        kv_cache: KVCache,
        profiler: StepProfiler,
    ) -> None:
        """Load every step program and bind every bucket.

        Raises:
            BundleError: A program file does not fit the manifest.
            DeviceError: The driver refused, or memory is short.
        """
        self._device = device
        self._kv_cache = kv_cache
        self._profiler = profiler
        self._block_size = manifest.kv.block_size
        self._programs: list[Program] = []
        self._steps: dict[Bucket, _BoundStep] = {}
        self._buffers: dict[str, DeviceBuffer] = {}
        specs = [spec for spec in manifest.programs if spec.role == "step"]
        self._reserve_io(specs)
        for spec in specs:
            program = device.load_program(spec, bundle)
            self._programs.append(program)
            for bucket in spec.buckets:
                self._bind(program, spec, bucket)

    def run(self, plan: StepPlan) -> NDArray[np.float32]:
        """Run one step: copy shared blocks, pack, run, append the new keys and values.

        Returns:
            Logits [bucket.batch, vocab_size], row i for `plan.rows[i]`; read-only, valid until
            the next run.

        Raises:
            DeviceError: A device call failed; what the rows wrote is undefined.
        """
        step = self._steps[plan.bucket]
        with self._profiler.part("pack"):
            pack_inputs(plan, step.host_inputs, self._block_size)
            slot_mapping = map_slots(plan, self._block_size)
        with self._profiler.part("copy"):
            self._kv_cache.copy_blocks(plan.block_copies)
            for name, array in step.host_inputs.named().items():
                self._device.copy_in(step.inputs[name], array)
        with self._profiler.part("graph"):
            step.program.run(plan.bucket)
            logits = self._device.copy_out(step.outputs["logits"])
        with self._profiler.part("append"):
            self._kv_cache.append(step.outputs["new_kv"], slot_mapping.rows, slot_mapping.slots)
            self._device.synchronize()
        return logits

    def warm_up(self, progress: Callable[[int, int, Bucket], None]) -> None:
        """Run every bucket once on padding alone, so that no request pays for a first run.

        Args:
            progress: Called before each run with its number from 0, their count, the bucket.
        """
        for i, (bucket, step) in enumerate(self._steps.items()):
            progress(i, len(self._steps), bucket)
            for name, array in HostInputs.zeros(bucket).named().items():
                self._device.copy_in(step.inputs[name], array)
            step.program.run(bucket)
            self._device.synchronize()

    def close(self) -> None:
        """Unload the programs and give all buffers back."""
        for program in self._programs:
            program.unload()
        for buffer in self._buffers.values():
            self._device.free(buffer)
        self._programs, self._buffers, self._steps = [], {}, {}

    def _reserve_io(self, specs: list[ProgramSpec]) -> None:
        """One buffer for each tensor name, as large as the largest bucket needs.

        Steps run one after another, so all buckets share the memory.
        """
        sizes: dict[str, int] = {}
        for spec in specs:
            for tensor in _io_tensors(spec):
                largest = max(_nbytes(tensor, bucket) for bucket in spec.buckets)
                sizes[tensor.name] = max(largest, sizes.get(tensor.name, 0))
        self._buffers = {name: self._device.alloc(nbytes) for name, nbytes in sizes.items()}

    def _bind(self, program: Program, spec: ProgramSpec, bucket: Bucket) -> None:
        tensors = self._kv_cache.pool_inputs()
        for tensor in _io_tensors(spec):
            shape, buffer = _shape(tensor, bucket), self._buffers[tensor.name]
            tensors[tensor.name] = DeviceTensor(buffer, 0, shape, tensor.dtype)
        inputs = {t.name: tensors[t.name] for t in spec.inputs}
        outputs = {t.name: tensors[t.name] for t in spec.outputs}
        program.bind(bucket, inputs, outputs)
        self._steps[bucket] = _BoundStep(program, inputs, outputs, HostInputs.zeros(bucket))


@dataclass(frozen=True, slots=True)
class _BoundStep:
    """One bucket's program, device windows and staging arrays."""

    program: Program
    inputs: Mapping[str, DeviceTensor]
    outputs: Mapping[str, DeviceTensor]
    host_inputs: HostInputs


def _io_tensors(spec: ProgramSpec) -> list[TensorSpec]:
    """All tensors of a program but the KV pool, which the `KVCache` owns."""
    return [t for t in (*spec.inputs, *spec.outputs) if "num_blocks" not in t.shape]


def _shape(tensor: TensorSpec, bucket: Bucket) -> tuple[int, ...]:
    """The tensor's dimensions in one bucket."""
    sizes = {
        "batch": bucket.batch,
        "tokens": bucket.tokens,
        "past_blocks": bucket.past_blocks,
        "new_tokens": bucket.batch * bucket.tokens,
    }
    return tuple(sizes[d] if isinstance(d, str) else d for d in tensor.shape)


def _nbytes(tensor: TensorSpec, bucket: Bucket) -> int:
    return math.prod(_shape(tensor, bucket)) * np.dtype(tensor.dtype).itemsize
