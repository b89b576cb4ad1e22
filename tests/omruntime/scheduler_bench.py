"""A scheduler with its pool and cache, driven without a device, for tests by example."""

from __future__ import annotations

from collections.abc import Callable

from omruntime.blocks.block_pool import BlockPool
from omruntime.blocks.prefix_cache import PrefixCache
from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.limits import EngineLimits
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.scheduler import Scheduler, SchedulerOptions
from omruntime.scheduling.turn import Scheduling
from omruntime.sequence import Request, Sequence
from omruntime.step import SampledToken, StepPlan

BLOCK_SIZE = 4
EOS = 99
AT_ONCE = Scheduling(ttft_target_s=1e-9)
GOES_ON = SampledToken(50)


class Bench:
    """A scheduler with its pool and cache; steps are answered without a device."""

    def __init__(
        self,
        num_blocks: int = 33,
        cached: bool = True,
        max_num_seqs: int = 4,
        max_model_len: int = 64,
        decode_rows: int = 4,
        prefill_rows: int = 1,
        max_queued_requests: int = 64,
        max_queued_tokens: int = 10_000,
        options: SchedulerOptions | None = None,
    ) -> None:
        longest = -(-max_model_len // BLOCK_SIZE)
        shapes = [(Phase.PREFILL, n, 8) for n in {1, prefill_rows}]
        shapes += [(Phase.PREFILL, n, 16) for n in {1, prefill_rows}]
        shapes += [(Phase.DECODE, decode_rows, 1)]
        table = BucketTable((Bucket(*s, longest) for s in shapes), BLOCK_SIZE)
        limits = EngineLimits(
            num_blocks, max_num_seqs, max_model_len, 16, max_queued_requests, max_queued_tokens
        )
        self.pool = BlockPool(num_blocks)
        self.cache = PrefixCache(self.pool, BLOCK_SIZE, "model") if cached else None
        self.scheduler = Scheduler(limits, table, self.pool, self.cache, [EOS], options)
        self.now = 0.0

    def add(
        self,
        name: str,
        num_tokens: int,
        max_new_tokens: int | None = None,
        first_id: int | None = None,
        salt: str = "",
        leader: str | None = None,
        scheduling: Scheduling | None = None,
    ) -> Sequence:
        """A prompt that shares nothing with those of other names, unless `first_id` says so."""
        first_id = 1000 * (1 + ord(name[0])) if first_id is None else first_id
        prompt = tuple(range(first_id, first_id + num_tokens))
        params = SamplingParams(max_new_tokens=max_new_tokens)
        scheduling = scheduling or Scheduling()
        request = Request(name, prompt, params, salt, leader, scheduling)
        return self.scheduler.add(request, self.now)

    def plan(self) -> StepPlan:
        plan = self.scheduler.schedule(self.now)
        self.scheduler.check()
        assert plan is not None
        return plan

    def update(self, plan: StepPlan, token: SampledToken = GOES_ON) -> list[Sequence]:
        finished = self.scheduler.update(plan, [token if r.samples else None for r in plan.rows])
        self.scheduler.check()
        return finished

    def step(self, token: SampledToken = GOES_ON) -> StepPlan:
        plan = self.plan()
        self.update(plan, token)
        return plan

    def run_until(self, done: Callable[[], bool]) -> list[StepPlan]:
        plans = []
        while not done():
            assert len(plans) < 1000, "no end in sight"
            plans.append(self.step())
        return plans

    def drain(self) -> None:
        self.run_until(lambda: self.scheduler.num_running + self.scheduler.num_waiting == 0)
        assert self.scheduler.schedule() is None
        assert self.pool.num_referenced == 0


def rows_of(plan: StepPlan) -> list[tuple[str, int, int]]:
    return [(r.sequence.request_id, r.start, r.num_tokens) for r in plan.rows]
