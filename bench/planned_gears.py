"""Gears for the example card of `omruntime.simulate`, chosen as `export-om plan` chooses them.

The planner's search and its model of traffic are the real ones; its cost model is the card's.
The lengths to plan for are of the same kind as those that are served, but not the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from atc_pipeline.plan.choose import GearLimits, choose_buckets
from atc_pipeline.plan.cost import CostModel
from atc_pipeline.plan.lengths import RequestLength
from atc_pipeline.plan.model_sizes import ModelSizes
from atc_pipeline.plan.traffic import Traffic
from atc_pipeline.soc import DEFAULT_SOC, find_soc
from omruntime.buckets import Bucket
from omruntime.simulate.machine import (
    EXAMPLE_BLOCK_SIZE,
    EXAMPLE_MODEL_LEN,
    EXAMPLE_SEQS,
    Machine,
    example_machine,
    example_seconds,
)
from omruntime.simulate.trace import synthetic_trace

NUM_GEARS, MAX_CHUNK_TOKENS = 8, 256
NUM_PLANNED_FOR = 500
# Quiet and busy times.
CONCURRENCY = (1.0, EXAMPLE_SEQS / 4, EXAMPLE_SEQS / 2)
# No size is asked for: the card's times come from `example_seconds`.
_NO_SIZES = ModelSizes(1, 1, 1, 1, 1, 1, 1, 1, tied_head=True)


@dataclass(frozen=True, slots=True)
class ExampleCost(CostModel):
    """Times of the example card in place of a chip's."""

    def shape_seconds(self, batch: int, tokens: int, past_blocks: int) -> float:
        """See `CostModel.shape_seconds`."""
        return example_seconds(batch, tokens, past_blocks)


def planned_machine(seed: int) -> Machine:
    """The example card with eight gears for each phase.

    Args:
        seed: Of the lengths that are planned for.
    """
    machine = example_machine(_planned_buckets(seed))
    name = f"example card, {len(machine.table)} planned gears"
    return Machine(name, machine.table, machine.limits, machine.costs)


def _planned_buckets(seed: int) -> tuple[Bucket, ...]:
    trace = synthetic_trace(NUM_PLANNED_FOR, EXAMPLE_MODEL_LEN, seed)
    lengths = tuple(RequestLength(r.num_prompt_tokens, r.num_output_tokens) for r in trace)
    traffic = Traffic(lengths, CONCURRENCY, EXAMPLE_SEQS, EXAMPLE_MODEL_LEN, EXAMPLE_BLOCK_SIZE)
    model = ExampleCost(find_soc(DEFAULT_SOC), _NO_SIZES, EXAMPLE_BLOCK_SIZE)
    return choose_buckets(traffic, model, GearLimits(NUM_GEARS, 2 * NUM_GEARS, MAX_CHUNK_TOKENS))
