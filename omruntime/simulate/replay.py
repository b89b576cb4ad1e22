"""Replay: one trace against one policy, over a virtual clock.

Owns the loop that stands in for the engine. The scheduler is the real one; a step takes what its
bucket costs, and the answers' lengths are the trace's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from itertools import pairwise

from omruntime.blocks.block_pool import BlockPool
from omruntime.buckets import BucketTable, Phase
from omruntime.costs.cost_table import CostTable
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.phase_policy import PhaseSnapshot, Targets
from omruntime.scheduling.scheduler import Scheduler, SchedulerOptions
from omruntime.sequence import Request
from omruntime.simulate.machine import Machine
from omruntime.simulate.trace import TracedRequest
from omruntime.step import SampledToken, StepPlan

END, WORD = 1, 2


@dataclass(slots=True)
class Measured:
    """What a caller saw of one request: seconds of the virtual clock."""

    arrival_s: float
    token_times: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        """Arrival to first token."""
        return self.token_times[0] - self.arrival_s

    @property
    def gaps_s(self) -> list[float]:
        """One token to the next."""
        return [after - before for before, after in pairwise(self.token_times)]


@dataclass(slots=True)
class Replayed:
    """A whole run.

    Attributes:
        num_useful, num_padded: Tokens that rows computed, and places that steps had for them.
    """

    requests: list[Measured]
    duration_s: float = 0.0
    num_steps: int = 0
    num_useful: int = 0
    num_padded: int = 0
    num_preemptions: int = 0


def policies(table: BucketTable, costs: CostTable, targets: Targets) -> dict[str, SchedulerOptions]:
    """The policies to compare, by name; only the first knows the costs."""
    by_work = CostTable(table, table.block_size)
    patient = Targets(float("inf"), float("inf"))
    return {
        "measured cost": SchedulerOptions(costs, targets),
        "smallest covering bucket": SchedulerOptions(by_work, patient, choose_phase=alternate),
        "first come first served": SchedulerOptions(by_work, patient, choose_phase=prefill_first),
    }


def alternate(now: PhaseSnapshot) -> Phase:
    """Prefill and decode in turn."""
    return Phase.PREFILL if now.num_decoded_since else Phase.DECODE


def prefill_first(now: PhaseSnapshot) -> Phase:
    """Decode only when there is no prompt left."""
    return Phase.PREFILL


def replay(trace: list[TracedRequest], machine: Machine, options: SchedulerOptions) -> Replayed:
    """Run a trace to its end."""
    limits = replace(machine.limits, max_queued_requests=len(trace) + 1)
    pool = BlockPool(limits.num_blocks)
    scheduler = Scheduler(limits, machine.table, pool, None, [END], options)
    result = Replayed([Measured(r.arrival_s) for r in trace])
    coming = deque(enumerate(trace))
    now = 0.0
    while True:
        while coming and coming[0][1].arrival_s <= now:
            index, traced = coming.popleft()
            scheduler.add(_request(index, traced), traced.arrival_s)
        plan = scheduler.schedule(now)
        if plan is not None:
            now += machine.costs.seconds(plan.bucket)
            _finish_step(scheduler, plan, trace, result, now)
        elif coming:
            now = coming[0][1].arrival_s
        else:
            break
    result.duration_s, result.num_preemptions = now, scheduler.num_preemptions
    return result


def saturation(trace: list[TracedRequest], machine: Machine, options: SchedulerOptions) -> float:
    """Requests a second that a machine serves when all of them are there from the start."""
    waiting = [replace(traced, arrival_s=0.0) for traced in trace]
    return len(trace) / replay(waiting, machine, options).duration_s


def _request(index: int, traced: TracedRequest) -> Request:
    # The scheduler must not know how long the answer gets: no max_new_tokens.
    return Request(str(index), (WORD,) * traced.num_prompt_tokens, SamplingParams())


def _finish_step(
    scheduler: Scheduler, plan: StepPlan, trace: list[TracedRequest], result: Replayed, now: float
) -> None:
    sampled: list[SampledToken | None] = []
    for row in plan.rows:
        index = int(row.sequence.request_id)
        if not row.samples:
            sampled.append(None)
            continue
        result.requests[index].token_times.append(now)
        is_last = row.sequence.num_output_tokens + 1 >= trace[index].num_output_tokens
        sampled.append(SampledToken(END if is_last else WORD))
    result.num_steps += 1
    result.num_useful += sum(row.num_tokens for row in plan.rows)
    result.num_padded += plan.bucket.batch * plan.bucket.tokens
    scheduler.update(plan, sampled)
