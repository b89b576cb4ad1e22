"""A plan as text and as JSON.

Owns the words; every number comes from the plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from atc_pipeline.plan.budget import GIB, MIB, Item
from atc_pipeline.plan.evaluate import PhaseCost, bucket_shares, longest_chunks
from atc_pipeline.plan.planner import Plan
from omruntime.buckets import Bucket, Phase

_LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


def plan_text(plan: Plan) -> str:
    """For a person."""
    parts = (_traffic_lines, _gear_lines, _waste_lines, _memory_lines, _room_lines, _build_lines)
    return "\n".join("\n".join(part(plan)) + "\n" for part in parts)


def plan_json(plan: Plan) -> str:
    """One object, for programs; sizes in bytes, times in seconds for each request."""
    budget = plan.budget
    plain = {
        "soc": plan.request.soc.name,
        "layout": plan.request.layout.value,
        "requests": {
            "num_planned": len(plan.traffic.requests),
            "num_refused": plan.num_refused,
            "num_cut": plan.num_cut,
            "concurrency": plan.traffic.concurrency,
        },
        "gears": json.loads(plan.gears.to_json()),
        "cost": {"before": _costs(plan, before=True), "after": _costs(plan, before=False)},
        "memory": {
            "memory_bytes": budget.memory_bytes,
            "items": {item.name: item.num_bytes for item in budget.items},
            "pool_bytes": budget.pool_bytes,
            "free_bytes": budget.free_bytes,
            "num_blocks": budget.num_blocks,
            "limited_by": budget.limited_by,
            "sequences": {str(n): budget.sequences_of(n) for n in room_lengths(plan)},
        },
        "build_estimate": {
            "num_oms": plan.build.num_oms,
            "num_gears": plan.build.num_gears,
            "num_nodes": plan.build.num_nodes,
            "seconds": round(plan.build.seconds),
            "measured": False,
        },
    }
    return json.dumps(plain, indent=2) + "\n"


def room_lengths(plan: Plan) -> list[int]:
    """Lengths to say the room for; the last is max_model_len."""
    longest = plan.request.max_model_len
    return [*(n for n in _LENGTHS if n < longest), longest]


def shares_of(plan: Plan, buckets: tuple[Bucket, ...]) -> Mapping[Bucket, float]:
    """Steps for each request that each bucket of a table takes."""
    chunks = longest_chunks(buckets, plan.traffic.max_past_blocks)
    points = {
        Phase.PREFILL: plan.traffic.prefill_points(chunks),
        Phase.DECODE: plan.traffic.decode_points,
    }
    shares: dict[Bucket, float] = {}
    for phase in Phase:
        of_phase = [b for b in buckets if b.phase is phase]
        shares |= bucket_shares(of_phase, points[phase], plan.model)
    return shares


def _traffic_lines(plan: Plan) -> Iterator[str]:
    requests = plan.traffic.requests
    prompts = sorted(r.prompt_tokens for r in requests)
    outputs = sorted(r.output_tokens for r in requests)
    limit = f"max_model_len {plan.request.max_model_len}"
    yield (
        f"{len(requests)} requests; {plan.num_refused} more have prompts beyond {limit} and are "
        f"left out, {plan.num_cut} answers are cut there"
    )
    for name, values in (("prompt", prompts), ("output", outputs)):
        middle, high = values[len(values) // 2], values[len(values) * 9 // 10]
        yield f"  {name} tokens: median {middle}, 90 % {high}, longest {values[-1]}"
    means = " and ".join(f"{mean:g}" for mean in plan.traffic.concurrency)
    yield (
        f"  in flight: {means} on average (Poisson, assumed), at most "
        f"{plan.traffic.max_num_seqs} run; prompts are computed one by one (assumed)"
    )


def _gear_lines(plan: Plan) -> Iterator[str]:
    yield "phase    rows  tokens  past blocks  least time  steps/request"
    shares = shares_of(plan, plan.buckets)
    for bucket in plan.buckets:
        yield (
            f"{bucket.phase.value:8} {bucket.batch:4}  {bucket.tokens:6}  {bucket.past_blocks:11}  "
            f"{plan.model.seconds(bucket) * 1e3:7.2f} ms  {shares[bucket]:13.2f}"
        )


def _waste_lines(plan: Plan) -> Iterator[str]:
    yield "least time for each request, and its share that is padding:"
    counts = (len(plan.default_buckets), len(plan.buckets))
    yield f"           default grid ({counts[0]})     this plan ({counts[1]})"
    for name, before, after in (
        ("prefill", plan.before.prefill, plan.after.prefill),
        ("decode", plan.before.decode, plan.after.decode),
        ("both", plan.before.both, plan.after.both),
    ):
        yield f"  {name:8} {_cost_text(before)}   {_cost_text(after)}"
    yield (
        f"  (peaks of the chip file: {plan.request.soc.float16_flops_per_s / 1e12:.1f} TFLOPS, "
        f"{plan.request.soc.memory_bytes_per_s / 1e9:.0f} GB/s; never measured)"
    )


def _cost_text(cost: PhaseCost) -> str:
    return f"{cost.padded_s * 1e3:9.1f} ms {cost.waste * 100:5.1f} %"


def _memory_lines(plan: Plan) -> Iterator[str]:
    budget = plan.budget
    yield f"memory of {_size(budget.memory_bytes)} (estimates; the runtime budgets again at load):"
    pool = Item(f"KV pool, {budget.num_blocks} blocks", budget.pool_bytes)
    for item in (*budget.items, pool, Item("free", budget.free_bytes)):
        yield f"  {item.name:24} {_size(item.num_bytes):>12}"
    yield (
        f"  num_blocks {budget.num_blocks} of {budget.block_size} tokens, "
        f"{budget.block_bytes / MIB:.2f} MiB each; limited by {budget.limited_by}"
    )


def _room_lines(plan: Plan) -> Iterator[str]:
    yield "sequences that the pool holds at once (max_num_seqs runs at most):"
    for length in room_lengths(plan):
        yield f"  of {length:6} tokens: {plan.budget.sequences_of(length)}"


def _build_lines(plan: Plan) -> Iterator[str]:
    build = plan.build
    yield (
        f"build: about {build.seconds / 60:.0f} minutes on a machine with CANN; an estimate, never "
        f"measured ({build.num_oms} OMs, {build.num_gears} gears x {build.num_nodes} nodes)"
    )


def _costs(plan: Plan, before: bool) -> dict[str, object]:
    cost = plan.before if before else plan.after
    phases = {"prefill": cost.prefill, "decode": cost.decode, "both": cost.both}
    plain: dict[str, object] = {
        name: {"padded_s": c.padded_s, "exact_s": c.exact_s, "waste": c.waste}
        for name, c in phases.items()
    }
    return plain | {"num_buckets": len(plan.default_buckets if before else plan.buckets)}


def _size(num_bytes: int) -> str:
    if num_bytes >= GIB:
        return f"{num_bytes / GIB:.2f} GiB"
    return f"{num_bytes / MIB:.1f} MiB"
