"""GraphExecutor: runs a StepPlan on a device.

Owns the loaded programs, the staging arrays and the I/O buffers. Knows neither why the
scheduler planned a step nor what the sampler makes of the logits.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omruntime.blocks.kv_cache import KVCache
from omruntime.buckets import Bucket
from omruntime.device.base import Device, DeviceBuffer, DeviceTensor, Program
from omruntime.element_type import item_bytes
from omruntime.errors import BundleError, DeviceError, StillRunningError
from omruntime.input_arena import InputArena, arena_bytes
from omruntime.inputs import map_slots, pack_places, pack_tokens
from omruntime.manifest import Manifest, ProgramSpec, TensorSpec
from omruntime.profiler import StepProfiler
from omruntime.step import StepPlan

logger = logging.getLogger(__name__)


class GraphExecutor:
    """Runs steps; everything is loaded, bound and allocated before the first one."""

    def __init__(
        self,
        device: Device,
        manifest: Manifest,
        bundle: Path,
        kv_cache: KVCache,
        profiler: StepProfiler,
        on_stage: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Load every step program and bind every bucket.

        Args:
            on_stage: Called with one line for humans before each program.

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
        self._outputs: dict[str, DeviceBuffer] = {}
        # Laid out but for its tokens, where the next step is copied from.
        self._prepared: StepPlan | None = None
        specs = step_programs(manifest)
        self._inputs = InputArena(device, (b for spec in specs for b in spec.buckets))
        self._outputs = {n: device.alloc(size) for n, size in _output_bytes(specs).items()}
        for spec in specs:
            self._require_fit(spec, manifest)
        for number, spec in enumerate(specs):
            on_stage(f"loading program {number + 1}/{len(specs)}: {spec.path}")
            program = device.load_program(spec, bundle)
            self._programs.append(program)
            for bucket in spec.buckets:
                self._bind(program, spec, bucket)

    def prepare(self, plan: StepPlan) -> None:
        """Lay a step out but for its tokens and new blocks, also while the device runs another.

        So the next `run` has less to do, if it is of this very plan; else it begins anew.
        """
        with self._profiler.part("prepare"):
            pack_places(plan, self._inputs.host_inputs(plan.bucket), self._block_size)
            self._prepared = plan

    def run(
        self, plan: StepPlan, meanwhile: Callable[[StepPlan], None] = lambda _plan: None
    ) -> NDArray[np.float32]:
        """Run one step: copy shared blocks, pack, run, append the new keys and values.

        All of it is queued, and waited for once.

        Args:
            meanwhile: Called with the plan once all is queued, while the device may be at work.

        Returns:
            Logits [rows, vocab_size], row i for `plan.rows[i]`; read-only, valid until the next
            run.

        Raises:
            DeviceError: A device call failed; what the rows wrote is undefined.
            StillRunningError: And the device goes on with it, so it can take no other step.
        """
        try:
            logits = self._queue(plan, self._steps[plan.bucket])
            meanwhile(plan)
            with self._profiler.part("wait"):
                self._device.synchronize()
        except BaseException:
            self._drain()
            raise
        return logits.astype(np.float32, copy=False)

    def _queue(self, plan: StepPlan, step: _BoundStep) -> NDArray[Any]:
        prepared, self._prepared = self._prepared, None
        with self._profiler.part("pack"):
            inputs = self._inputs.host_inputs(plan.bucket)
            if plan is not prepared:
                pack_places(plan, inputs, self._block_size)
            pack_tokens(plan, inputs)
        with self._profiler.part("copy"):
            self._kv_cache.copy_blocks(plan.block_copies)
            self._inputs.copy_in(plan.bucket)
        with self._profiler.part("launch"):
            step.program.run(plan.bucket)
            logits = self._device.copy_out(step.logits_of(len(plan.rows)))
        with self._profiler.part("append"):
            slot_mapping = map_slots(plan, self._block_size)
            if len(slot_mapping.slots):
                self._kv_cache.append(step.new_kv, slot_mapping.rows, slot_mapping.slots)
        return logits

    def _drain(self) -> None:
        """Let what a failed step queued end, so that the next one finds nothing in flight.

        Raises:
            StillRunningError: It does not end.
        """
        try:
            self._device.synchronize()
        except StillRunningError:
            raise
        except DeviceError as error:
            logger.warning("after a failed step: %s", error)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Every bucket that can be run."""
        return tuple(self._steps)

    def time_run(self, bucket: Bucket) -> float:
        """Run a bucket once on padding alone, and wait for it; the seconds that it took."""
        step = self._steps[bucket]
        self._inputs.clear()
        start = perf_counter()
        self._inputs.copy_in(bucket)
        step.program.run(bucket)
        # As in a step; and the device makes room for what comes out when it is first asked.
        self._device.copy_out(step.logits_of(bucket.batch))
        self._device.synchronize()
        return perf_counter() - start

    def close(self) -> None:
        """Unload the programs and give all buffers back."""
        for program in self._programs:
            program.unload()
        for buffer in self._outputs.values():
            self._device.free(buffer)
        self._inputs.close()
        self._programs, self._outputs, self._steps = [], {}, {}

    def _require_fit(self, spec: ProgramSpec, manifest: Manifest) -> None:
        given = {**self._kv_cache.pool_inputs(), **self._inputs.device_tensors(spec.buckets[0])}
        misfits = "; ".join(_misfits(spec, manifest, given))
        if misfits:
            raise BundleError(
                f"{spec.path} does not fit the manifest: {misfits}. Copy the bundle again or "
                f"rebuild it"
            )

    def _bind(self, program: Program, spec: ProgramSpec, bucket: Bucket) -> None:
        tensors = {**self._kv_cache.pool_inputs(), **self._inputs.device_tensors(bucket)}
        inputs = {t.name: tensors[t.name] for t in spec.inputs}
        outputs = {
            t.name: DeviceTensor(self._outputs[t.name], 0, _shape(t, bucket), t.dtype)
            for t in spec.outputs
        }
        program.bind(bucket, inputs, outputs)
        self._steps[bucket] = _BoundStep(program, outputs)


@dataclass(frozen=True, slots=True)
class _BoundStep:
    """One bucket's program and device windows."""

    program: Program
    outputs: Mapping[str, DeviceTensor]

    @property
    def new_kv(self) -> DeviceTensor:
        """The step's new keys and values."""
        return self.outputs["new_kv"]

    def logits_of(self, num_rows: int) -> DeviceTensor:
        """The logits of the first rows; the others are padding's."""
        logits = self.outputs["logits"]
        return DeviceTensor(
            logits.buffer, logits.offset, (num_rows, *logits.shape[1:]), logits.dtype
        )


def _misfits(
    spec: ProgramSpec, manifest: Manifest, given: Mapping[str, DeviceTensor]
) -> Iterator[str]:
    """What a program takes or gives otherwise than the manifest's model and pool."""
    kv, vocab_size = manifest.kv, manifest.model.vocab_size
    for tensor in spec.inputs:
        if tensor.name not in given:
            yield f"it takes {tensor.name}, which a {kv.layout.value} pool does not have"
        elif tensor.dtype != given[tensor.name].dtype:
            yield f"{tensor.name} is {tensor.dtype}, wanted {given[tensor.name].dtype}"
    outputs = {tensor.name: tensor for tensor in spec.outputs}
    yield from (f"it gives no {name}" for name in ("logits", "new_kv") if name not in outputs)
    if "new_kv" in outputs and outputs["new_kv"].dtype != kv.dtype:
        yield f"new_kv is {outputs['new_kv'].dtype}, wanted {kv.dtype}"
    if "logits" in outputs and outputs["logits"].shape[-1] != vocab_size:
        yield f"logits are {outputs['logits'].shape[-1]} wide, the vocabulary is {vocab_size}"


def step_programs(manifest: Manifest) -> list[ProgramSpec]:
    """The programs of steps, the one with the most work in a step first.

    A device may let later programs run in the work memory of earlier ones.
    """
    block_size = manifest.kv.block_size

    def most_work(spec: ProgramSpec) -> int:
        return max(bucket.padded_work(block_size) for bucket in spec.buckets)

    specs = [spec for spec in manifest.programs if spec.role == "step"]
    return sorted(specs, key=lambda spec: (-most_work(spec), spec.path))


def io_bytes(manifest: Manifest) -> list[int]:
    """Bytes of each buffer that the executor reserves, the KV pool left out."""
    specs = step_programs(manifest)
    arena = max(arena_bytes(bucket) for spec in specs for bucket in spec.buckets)
    return [arena, *_output_bytes(specs).values()]


def _output_bytes(specs: list[ProgramSpec]) -> dict[str, int]:
    """For each output as much as its largest bucket needs.

    Steps run one after another, so all buckets share the memory.
    """
    sizes: dict[str, int] = {}
    for spec in specs:
        for tensor in spec.outputs:
            largest = max(_nbytes(tensor, bucket) for bucket in spec.buckets)
            sizes[tensor.name] = max(largest, sizes.get(tensor.name, 0))
    return sizes


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
    return math.prod(_shape(tensor, bucket)) * item_bytes(tensor.dtype)
