"""Engine: one bundle on one device, advanced step by step.

Owns the device and everything on it; the thread that opens an engine is the only one that may
call it. Knows nothing of text, sockets or other threads.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from omruntime.blocks.block_pool import NULL_BLOCK, BlockPool
from omruntime.blocks.kv_cache import KVCache, kv_bytes_per_block
from omruntime.blocks.memory_budget import KV_POOL, MemoryBudget
from omruntime.blocks.prefix_cache import PrefixCache, PrefixCacheCounters
from omruntime.buckets import Bucket
from omruntime.bundle_files import check_files
from omruntime.costs.bucket_use import BucketUse
from omruntime.costs.cost_file import CostFile, CostKey
from omruntime.costs.cost_table import CostTable
from omruntime.costs.warm_up import LONG_RUN_S, runs_within, warm_up
from omruntime.device import Device, MemoryItem, open_device
from omruntime.device.faults import with_faults
from omruntime.engine_state import (
    MAX_LISTED_SEQUENCES,
    MAX_MAPPED_BLOCKS,
    EngineState,
    list_sequences,
)
from omruntime.errors import (
    BundleError,
    DeviceError,
    NotBuiltInError,
    RequestError,
    StillRunningError,
)
from omruntime.executor import GraphExecutor, io_bytes, step_programs
from omruntime.grammar.cache import GrammarCache
from omruntime.grammar.trial import open_compiler
from omruntime.limits import EngineLimits, resolve_limits
from omruntime.manifest import Manifest
from omruntime.outputs import EngineCounters, EngineLoad
from omruntime.profiler import StepProfiler
from omruntime.sampling.native_rows import open_native_rows
from omruntime.sampling.row_results import read_logits
from omruntime.sampling.sampler import Sampler
from omruntime.sampling.token_matcher import Grammar
from omruntime.scheduling.phase_policy import Targets
from omruntime.scheduling.reach import reachable
from omruntime.scheduling.scheduler import Scheduler, SchedulerOptions
from omruntime.sequence import FinishReason, Request, Sequence
from omruntime.settings import EngineSettings
from omruntime.step import RowResult, SamplingFailure, StepPlan
from omruntime.step_deltas import EngineOutput, StepDeltas

logger = logging.getLogger(__name__)

# What a start spends on runs whose times an earlier start measured, where nothing is made ready by
# them: enough to run each program and the cheaper buckets, too short to be waited for.
KNOWN_WARM_UP_S = 0.5


class Engine:
    """Schedules, runs and samples; every call is for the owning thread."""

    def __init__(
        self,
        device: Device,
        bundle: Path,
        settings: EngineSettings,
        options_of: Callable[[EngineSettings, CostTable], SchedulerOptions] | None = None,
        on_stage: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Load a bundle onto an open device.

        Args:
            options_of: The scheduler's, for comparisons of policies; None follows the settings.
            on_stage: Called with one line for humans before what may take long.

        Raises:
            BundleError: The bundle is damaged or made for another device.
            ConfigError: A setting passes what the bundle was built for.
            DeviceError: The device refused, or its memory is short.
        """
        manifest = Manifest.read(bundle)
        check_files(bundle, manifest)
        if manifest.soc != device.soc:
            raise BundleError(
                f"the bundle was built for {manifest.soc}, device {device.name} is "
                f"{device.soc}; serve it with {_device_flag(manifest)}, or build it with --target "
                f"{device.soc}"
            )
        self.manifest = manifest
        self.limits: EngineLimits = resolve_limits(settings, manifest)
        self.profiler = StepProfiler()
        self._device = device
        # The budget first: what does not fit is refused before anything is reserved.
        plan_memory(device, manifest, bundle, self.limits.num_blocks).require_fits(device)
        on_stage(f"reserving {self.limits.num_blocks} KV blocks")
        self._kv_cache = KVCache(device, manifest.model, manifest.kv, self.limits.num_blocks)
        self._pool = BlockPool(self.limits.num_blocks)
        self._cache = self._new_prefix_cache(settings) if settings.enable_prefix_cache else None
        self._buckets = reachable(
            manifest.bucket_table(),
            self.limits.max_num_seqs,
            self.limits.max_model_len,
            self.limits.max_chunk_tokens,
        )
        self._costs = CostTable(self._buckets, manifest.kv.block_size)
        key = _cost_key(manifest, device, settings)
        self._cost_file = CostFile.within(settings.cache_dir, key)
        self._cost_file.load_into(self._costs)
        self._scheduler = Scheduler(
            self.limits,
            self._buckets,
            self._pool,
            self._cache,
            manifest.model.eos_token_ids,
            (options_of or _scheduler_options)(settings, self._costs),
        )
        self._sampler = Sampler(
            manifest.model.vocab_size, manifest.model.eos_token_ids, open_native_rows()
        )
        self._executor = GraphExecutor(
            device, manifest, bundle, self._kv_cache, self.profiler, on_stage
        )
        self._grammars = GrammarCache(lambda: open_compiler(bundle, manifest.model))
        overlaps = settings.overlap_scheduling
        self._overlaps = device.runs_asynchronously if overlaps is None else overlaps
        self._check_every = settings.check_invariants_every
        self._use = BucketUse(self._buckets)
        self._warm_up_s = 0.0
        self._num_rounds = self._num_steps = self._num_prefill_tokens = 0
        # What the last step took, until the next one runs.
        self._last_run: tuple[Bucket, float] | None = None
        self._device_error: str | None = None
        self._deltas = StepDeltas()
        # Why nothing may touch the device any more; None while all is well.
        self._stuck: str | None = None

    @staticmethod
    def open(
        bundle: Path, settings: EngineSettings, on_stage: Callable[[str], None] = lambda _line: None
    ) -> Engine:
        """Open the device that the settings name and load the bundle onto it."""
        on_stage(f"opening device {settings.device}")
        device = open_device(settings.device, settings.num_threads, settings.step_timeout_s)
        try:
            faulty = with_faults(device, settings.inject_fault)
            return Engine(faulty, bundle, settings, on_stage=on_stage)
        except BaseException:
            device.close()
            raise

    def warm_up(
        self, progress: Callable[[int, int, Bucket], None], budget_s: float | None = None
    ) -> None:
        """Run what can be needed once, and measure what is not known yet.

        That is every bucket within the limits, and every way of sampling.

        Args:
            progress: Called before each bucket with its number from 0, their count, the bucket.
            budget_s: Run only what is known to take about so long all told, and what is not
                known: to serve again soon. None runs everything that the device prepares for.
        """
        buckets = tuple(bucket for bucket in self._executor.buckets if bucket in self._costs)
        if not self._device.prepares_buckets:
            budget_s = min(KNOWN_WARM_UP_S, math.inf if budget_s is None else budget_s)
        if budget_s is not None:
            buckets = runs_within(buckets, self._costs, budget_s)
        start = time.monotonic()
        long_run_s = math.inf if self._device.prepares_buckets else LONG_RUN_S
        if warm_up(self._time_run, buckets, self._costs, progress, long_run_s):
            self._cost_file.save(self._costs)
        self._sampler.warm_up()
        self._warm_up_s = time.monotonic() - start

    def _time_run(self, bucket: Bucket) -> float:
        seconds = self._executor.time_run(bucket)
        self._use.warmed(bucket, seconds)
        return seconds

    def require_fits(self, request: Request) -> None:
        """Check that a request could run if it were alone.

        Raises:
            RequestError: It can never run; the message says why, with the limit.
            DeviceError: The device is stuck, so nothing can run.
        """
        if self._stuck is not None:
            raise DeviceError(f"{self._stuck}; restart the server")
        if request.adapter is not None:
            raise NotBuiltInError(
                f"adapter {request.adapter.name!r} was asked for; running adapters is not built in"
            )
        prompt, vocab_size = request.prompt_token_ids, self.manifest.model.vocab_size
        for token_id in (min(prompt, default=0), max(prompt, default=0)):
            if not 0 <= token_id < vocab_size:
                raise RequestError(
                    f"the prompt holds token id {token_id}, outside the model's 0 to "
                    f"{vocab_size - 1}",
                    "prompt",
                )
        self._scheduler.require_runnable(request)

    def prepare(self, request: Request) -> Future[Grammar] | None:
        """Begin to compile the request's constraint in another thread; None without one.

        Raises:
            RequestError, DeviceError: As `require_fits`.
            OverloadedError: Too many constraints wait to be compiled.
        """
        constraint = request.params.constraint
        if constraint is None:
            return None
        self.require_fits(request)
        return self._grammars.submit(constraint)

    def add(
        self,
        request: Request,
        submitted_at: float | None = None,
        grammar: Future[Grammar] | None = None,
    ) -> None:
        """Queue a request.

        Args:
            request: With resolved params that have a seed, see `SamplingParams.resolve` and
                `seeds.with_seed`.
            submitted_at: `time.monotonic` when the caller asked; None means now.
            grammar: What `prepare` gave, done; None waits until the constraint is compiled.

        Raises:
            RequestError: It can never run, its id is that of a live request, or its constraint
                is refused.
            OverloadedError: A queue limit is reached.
        """
        at = time.monotonic() if submitted_at is None else submitted_at
        self.require_fits(request)
        grammar = grammar or self.prepare(request)
        matcher = None if grammar is None else grammar.result().new_matcher()
        self._scheduler.add(request, at).matcher = matcher

    def abort(
        self, request_id: str, reason: FinishReason = FinishReason.ABORT
    ) -> EngineOutput | None:
        """End a request now and free its blocks; None when no such request is live."""
        sequence = self._scheduler.abort(request_id, reason)
        return None if sequence is None else self._deltas.last(sequence)

    def abort_all(self) -> list[EngineOutput]:
        """End every live request now."""
        aborted = [self.abort(request_id) for request_id in self._scheduler.live_request_ids()]
        return [output for output in aborted if output is not None]

    @property
    def num_waiting(self) -> int:
        """Requests that hold no blocks yet, or none any more."""
        return self._scheduler.num_waiting

    @property
    def has_work(self) -> bool:
        """Whether a request is waiting or running."""
        return self._scheduler.num_waiting + self._scheduler.num_running > 0

    def step(self) -> list[EngineOutput]:
        """Run one step: schedule, execute, sample, update.

        The step is a transaction: when it fails, its requests end with ERROR and all others
        are as they were.

        Returns:
            What is new, at most one entry for each request; a finished one's is its last.
        """
        now = time.monotonic()
        ended = self._check_sometimes() + self._scheduler.expire(now)
        outputs = [self._deltas.last(s, s.finish_detail) for s in ended]
        with self.profiler.part("schedule"):
            plan = self._scheduler.schedule(now)
        if plan is None:
            return outputs
        _mark_scheduled(plan, now)
        return outputs + self._run(plan)

    def _run(self, plan: StepPlan) -> list[EngineOutput]:
        self._num_steps += 1
        start = time.perf_counter()
        num_tokens = sum(row.num_tokens for row in plan.rows)
        self._use.ran(plan.bucket, len(plan.rows), num_tokens)
        self._num_prefill_tokens += sum(row.num_prompt_tokens for row in plan.rows)
        try:
            logits = self._executor.run(plan, self._look_ahead)
            self._last_run = plan.bucket, time.perf_counter() - start
            with self.profiler.part("sample"):
                results = read_logits(self._sampler, plan, logits)
        except Exception as error:  # whatever went wrong, the step's requests must end
            logger.exception("a step failed")
            self._device_error = f"a step failed: {error}"
            failed = self._scheduler.fail(plan)
            outputs = [self._deltas.last(s, self._device_error) for s in failed]
            if isinstance(error, StillRunningError):
                outputs += self._give_up(str(error))
            return outputs
        spoilt = _blocks_of_failures(plan, results)
        with self.profiler.part("update"):
            self._scheduler.update(plan, results)
            if spoilt:
                self._scrub(spoilt)
            return self._deltas.of_step(plan, results)

    def _look_ahead(self, plan: StepPlan) -> None:
        """While the device works on a plan: learn from the step before, prepare the one after.

        Costs change here alone, so that none does between a look ahead and the next step.
        """
        if self._last_run is not None:
            self._costs.refine(*self._last_run)
            self._last_run = None
        if not self._overlaps:
            return
        with self.profiler.part("foresee"):
            foreseen = self._scheduler.foresee(plan)
        if foreseen is not None:
            self._executor.prepare(foreseen)

    def _give_up(self, text: str) -> list[EngineOutput]:
        """End everything: what the device works on may be any block or buffer of ours."""
        self._stuck = self._device_error = f"the device does not end a step: {text}"
        ids = self._scheduler.live_request_ids()
        ended = [self._scheduler.abort(request_id, FinishReason.ERROR) for request_id in ids]
        return [self._deltas.last(s, self._stuck) for s in ended if s is not None]

    def _scrub(self, block_ids: set[int]) -> None:
        """Let nobody read what may hold values that are no numbers.

        Not from the prefix cache; and not as what lies behind the end of a sequence in a block
        it got, which programs mask by multiplying. What others share, they will fail by.
        """
        if self._cache is not None:
            for block_id in block_ids:
                self._cache.forget(block_id)
        free = [block_id for block_id in block_ids if not self._pool.reference_count(block_id)]
        # The null block is never written, so it is zero as on the first day.
        try:
            self._kv_cache.copy_blocks(tuple((NULL_BLOCK, block_id) for block_id in sorted(free)))
        except DeviceError as error:
            self._device_error = f"blocks could not be cleared: {error}"

    def take_device_error(self) -> str | None:
        """Why the last step failed; None when it did not, and from the next call on."""
        error, self._device_error = self._device_error, None
        return error

    def load(self) -> EngineLoad:
        """What is held right now."""
        scheduler = self._scheduler
        return EngineLoad(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_waiting_tokens=scheduler.num_waiting_tokens,
            num_referenced_blocks=self._pool.num_referenced,
            num_cached_blocks=0 if self._cache is None else len(self._cache),
            num_total_blocks=self.limits.num_blocks - 1,
            num_preemptions=scheduler.num_preemptions,
            num_prefix_hit_tokens=scheduler.num_prefix_hit_tokens,
            num_finished=dict(self._deltas.num_finished),
            num_free_cached_blocks=self._pool.num_free_cached,
        )

    def counters(self) -> EngineCounters:
        """What has happened since start."""
        cache = PrefixCacheCounters() if self._cache is None else self._cache.counters
        return EngineCounters(
            self._num_steps,
            self._scheduler.num_quarantined,
            cache,
            self._use.num_tokens,
            self._use.num_places,
            self._num_prefill_tokens,
            self._deltas.num_generated_tokens,
            self._use.num_switches,
        )

    def inspect(self) -> EngineState:
        """A look at everything that operators may want to see; takes two milliseconds at most."""
        sequences = self._scheduler.sequences()
        return EngineState(
            num_sequences=len(sequences),
            sequences=list_sequences(sequences[:MAX_LISTED_SEQUENCES], time.monotonic()),
            buckets=self._use.reports(self._costs),
            block_states=self._pool.states(MAX_MAPPED_BLOCKS),
            warm_up_s=self._warm_up_s,
            switch_s=self._costs.switch_s,
        )

    def flush_prefix_cache(self) -> int:
        """Forget all cached beginnings and say how many blocks; running requests go on."""
        return 0 if self._cache is None else self._cache.flush()

    def check(self) -> None:
        """Prove the invariants of pool, prefix cache and scheduler; for tests."""
        self._scheduler.check()

    def _check_sometimes(self) -> list[Sequence]:
        """Check the invariants now and then; the requests that broken ones ended."""
        self._num_rounds += 1
        if not self._check_every or self._num_rounds % self._check_every:
            return []
        try:
            self._scheduler.check()
        except AssertionError:
            logger.exception("the engine's state is inconsistent; a bug, please report it")
            return self._scheduler.quarantine()
        return []

    def close(self) -> None:
        """Give everything back to the device and end it; one that is stuck is left as it is."""
        self._grammars.close()
        if self._stuck is not None:
            logger.error("the device is not closed: %s", self._stuck)
            return
        if self._costs.is_complete:
            self._cost_file.save(self._costs)
        self._executor.close()
        self._kv_cache.close()
        self._device.close()

    def _new_prefix_cache(self, settings: EngineSettings) -> PrefixCache:
        kv = self.manifest.kv
        return PrefixCache(
            self._pool,
            kv.block_size,
            self.manifest.kv_identity,
            prompts_only=settings.deterministic,
        )


def _device_flag(manifest: Manifest) -> str:
    """The flag that a bundle is served with."""
    if manifest.soc == "cpu":
        return "--device openvino" if manifest.profile == "openvino" else "--device cpu"
    is_simulated = manifest.provenance.get("simulated") == "true"
    return f"--device sim:0@{manifest.soc}" if is_simulated else "--device ascend:0"


def _blocks_of_failures(plan: StepPlan, results: list[RowResult]) -> set[int]:
    """The blocks that rows without a next token read and wrote."""
    return {
        block_id
        for row, result in zip(plan.rows, results, strict=True)
        if isinstance(result, SamplingFailure)
        for block_id in row.sequence.block_table
    }


def plan_memory(device: Device, manifest: Manifest, bundle: Path, num_blocks: int) -> MemoryBudget:
    """What a bundle will take from a device; reserves nothing.

    Raises:
        BundleError: A program file is not for this device.
        DeviceError: The driver refused.
    """
    pool = num_blocks * kv_bytes_per_block(manifest.model, manifest.kv)
    items = (
        *device.plan_programs(step_programs(manifest), bundle),
        MemoryItem("inputs and outputs", sum(map(device.reserved_bytes, io_bytes(manifest)))),
        MemoryItem(KV_POOL, device.reserved_bytes(pool)),
    )
    return MemoryBudget(items, manifest.kv.num_blocks is not None)


def _cost_key(manifest: Manifest, device: Device, settings: EngineSettings) -> CostKey:
    num_threads = settings.num_threads or len(os.sched_getaffinity(0))
    return CostKey(manifest.digest(), device.name, device.soc, num_threads)


def _scheduler_options(settings: EngineSettings, costs: CostTable) -> SchedulerOptions:
    targets = Targets(settings.ttft_target_ms / 1000, settings.itl_target_ms / 1000)
    return SchedulerOptions(costs, targets, settings.deterministic)


def _mark_scheduled(plan: StepPlan, now: float) -> None:
    for row in plan.rows:
        if row.sequence.scheduled_at is None:
            row.sequence.scheduled_at = now
