"""`make_plan`: from lengths and sizes to buckets, their cost, memory and build time.

Owns the order of the steps and what a plan consists of; nothing here reads a file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from atc_pipeline.atc.jobs import Layout
from atc_pipeline.plan.budget import BudgetNeeds, MemoryBudget, make_budget
from atc_pipeline.plan.build_time import (
    FIXED_S,
    build_seconds,
    estimated_nodes,
    gears_within,
)
from atc_pipeline.plan.choose import GearLimits, choose_buckets
from atc_pipeline.plan.cost import CostModel
from atc_pipeline.plan.evaluate import TrafficCost, evaluate
from atc_pipeline.plan.gears_file import PlannedGears
from atc_pipeline.plan.lengths import RequestLength
from atc_pipeline.plan.model_sizes import ModelSizes
from atc_pipeline.plan.traffic import Traffic, fit_requests
from atc_pipeline.soc import Soc
from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.errors import BundleError, ConfigError

MAX_GEARS_OF_AN_OM = 100
# An hour for one operator; beyond that an estimate is a slip of the pen.
MAX_NODE_S = 3600
# One for each phase.
LEAST_GEARS = 2


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is planned for.

    Attributes:
        memory_bytes: Of the device.
        max_gears: Of each OM; of layout static, the number of OMs.
        concurrency: Mean numbers of requests in flight, see `Traffic`.
        build_budget_s: Most seconds of the estimated build; None sets no limit.
        node_s: Of that estimate, see `build_time.py`.
        separate_weights: Whether each OM has weights of its own, as without shared files.
    """

    soc: Soc
    memory_bytes: int
    reserve_bytes: int
    layout: Layout
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_gears: int
    max_chunk_tokens: int
    concurrency: tuple[float, ...]
    build_budget_s: float | None
    node_s: float
    separate_weights: bool

    def __post_init__(self) -> None:
        """Check each value by itself.

        Raises:
            ConfigError: A value is out of range; the message names it.
        """
        for name, value, least in (
            ("--memory", self.memory_bytes, 1),
            ("--block-size", self.block_size, 1),
            ("--max-model-len", self.max_model_len, 2),
            ("--max-num-seqs", self.max_num_seqs, 1),
            ("--max-gears", self.max_gears, 1 if self.layout is Layout.PER_PHASE else 2),
            ("--max-chunk-tokens", self.max_chunk_tokens, 2),
        ):
            if value < least:
                raise ConfigError(f"{name} is {value}, wanted at least {least}")
        if not self.concurrency or not all(0 < x < math.inf for x in self.concurrency):
            raise ConfigError(f"--concurrency is {self.concurrency}, wanted numbers above 0")
        if not 0 < self.node_s <= MAX_NODE_S:
            raise ConfigError(
                f"--seconds-per-node is {self.node_s}, wanted above 0 and at most {MAX_NODE_S}"
            )
        if self.layout is not Layout.STATIC and self.max_gears > MAX_GEARS_OF_AN_OM:
            raise ConfigError(
                f"--max-gears is {self.max_gears}, ATC takes at most {MAX_GEARS_OF_AN_OM} in an OM"
            )


@dataclass(frozen=True, slots=True)
class BuildEstimate:
    """Seconds of a build with CANN; an estimate, see `build_time.py`."""

    num_oms: int
    num_gears: int
    num_nodes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan and what it was made of.

    Attributes:
        before: The cost of the default grid for the same traffic.
        num_refused: Requests whose prompt is too long for max_model_len; they are left out.
        num_cut: Requests whose answer is cut short by it.
    """

    request: PlanRequest
    sizes: ModelSizes
    traffic: Traffic
    default_buckets: tuple[Bucket, ...]
    buckets: tuple[Bucket, ...]
    before: TrafficCost
    after: TrafficCost
    budget: MemoryBudget
    build: BuildEstimate
    num_refused: int
    num_cut: int

    @property
    def gears(self) -> PlannedGears:
        """What `export-om build --buckets` takes."""
        return PlannedGears(self.buckets, self.budget.num_blocks, self.request.block_size)

    @property
    def model(self) -> CostModel:
        """What the costs come from."""
        return CostModel(self.request.soc, self.sizes, self.request.block_size)


def make_plan(
    sizes: ModelSizes,
    lengths: Sequence[RequestLength],
    default_buckets: tuple[Bucket, ...],
    request: PlanRequest,
) -> Plan:
    """Choose buckets for a traffic.

    Args:
        default_buckets: The grid that a build without a plan would have.

    Raises:
        ConfigError: The model, or one sequence at its longest, does not fit into memory; no
            request fits max_model_len; or the build budget allows no build.
    """
    requests, num_refused, num_cut = fit_requests(lengths, request.max_model_len)
    traffic = Traffic(
        requests,
        request.concurrency,
        request.max_num_seqs,
        request.max_model_len,
        request.block_size,
    )
    model = CostModel(request.soc, sizes, request.block_size)
    buckets = choose_buckets(traffic, model, _limits(request, sizes))
    _require_cover(buckets, request)
    return Plan(
        request=request,
        sizes=sizes,
        traffic=traffic,
        default_buckets=default_buckets,
        buckets=buckets,
        before=evaluate(default_buckets, traffic, model),
        after=evaluate(buckets, traffic, model),
        budget=make_budget(sizes, request.soc, _budget_needs(buckets, request)),
        build=_build_estimate(buckets, sizes, request),
        num_refused=num_refused,
        num_cut=num_cut,
    )


def programs_of(buckets: Sequence[Bucket], layout: Layout) -> list[list[Bucket]]:
    """The buckets of each OM."""
    if layout is Layout.STATIC:
        return [[bucket] for bucket in buckets]
    if layout is Layout.UNIFIED:
        return [list(buckets)]
    return [[b for b in buckets if b.phase is phase] for phase in Phase]


def _limits(request: PlanRequest, sizes: ModelSizes) -> GearLimits:
    together = request.max_gears * (2 if request.layout is Layout.PER_PHASE else 1)
    if request.build_budget_s is not None:
        together = min(together, _affordable_gears(request, sizes, request.build_budget_s))
    return GearLimits(request.max_gears, together, request.max_chunk_tokens)


def _affordable_gears(request: PlanRequest, sizes: ModelSizes, budget_s: float) -> int:
    """How many gears the build budget allows.

    Raises:
        ConfigError: Not even one for each phase.
    """
    gear_s = estimated_nodes(sizes.num_layers) * request.node_s
    is_static = request.layout is Layout.STATIC
    num_oms = {Layout.PER_PHASE: 2, Layout.UNIFIED: 1, Layout.STATIC: 0}[request.layout]
    count = gears_within(budget_s, num_oms, gear_s + (FIXED_S if is_static else 0.0))
    if count < LEAST_GEARS:
        least_s = build_seconds(num_oms or LEAST_GEARS, LEAST_GEARS * gear_s)
        raise ConfigError(
            f"--build-budget of {budget_s / 60:.1f} minutes allows no build: one gear for each "
            f"phase is estimated to take {least_s / 60:.1f} minutes"
        )
    return count


def _require_cover(buckets: tuple[Bucket, ...], request: PlanRequest) -> None:
    table = BucketTable(buckets, request.block_size)
    try:
        table.require_cover(request.max_num_seqs, request.max_model_len)
    except BundleError as error:
        raise ConfigError(str(error)) from error


def _budget_needs(buckets: tuple[Bucket, ...], request: PlanRequest) -> BudgetNeeds:
    programs = programs_of(buckets, request.layout)
    return BudgetNeeds(
        memory_bytes=request.memory_bytes,
        reserve_bytes=request.reserve_bytes,
        programs=programs,
        weight_copies=len(programs) if request.separate_weights else 1,
        block_size=request.block_size,
        max_num_seqs=request.max_num_seqs,
        max_model_len=request.max_model_len,
    )


def _build_estimate(
    buckets: tuple[Bucket, ...], sizes: ModelSizes, request: PlanRequest
) -> BuildEstimate:
    num_oms, num_nodes = (
        len(programs_of(buckets, request.layout)),
        estimated_nodes(sizes.num_layers),
    )
    seconds = build_seconds(num_oms, len(buckets) * num_nodes * request.node_s)
    return BuildEstimate(num_oms, len(buckets), num_nodes, seconds)
