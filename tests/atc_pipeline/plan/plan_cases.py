"""Small models and traffics that the planner's tests share."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from atc_pipeline.atc.jobs import Layout
from atc_pipeline.plan.lengths import RequestLength
from atc_pipeline.plan.model_sizes import ModelSizes
from atc_pipeline.plan.planner import PlanRequest
from atc_pipeline.plan.traffic import Traffic
from atc_pipeline.soc import SOCS

# The sizes of SmolLM2-135M.
SMALL = ModelSizes(
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    hidden_size=576,
    intermediate_size=1536,
    vocab_size=49152,
    num_parameters=134_515_008,
    tied_head=True,
)
# Seven billion weights, and keys and values of every head.
LARGE = ModelSizes(
    num_layers=32,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    hidden_size=4096,
    intermediate_size=11008,
    vocab_size=32000,
    num_parameters=6_738_415_616,
    tied_head=False,
)
REQUEST = PlanRequest(
    soc=SOCS["Ascend310P3"],
    memory_bytes=24 << 30,
    reserve_bytes=1 << 30,
    layout=Layout.PER_PHASE,
    block_size=128,
    max_model_len=2048,
    max_num_seqs=16,
    max_gears=4,
    max_chunk_tokens=512,
    concurrency=(1.0, 8.0),
    build_budget_s=None,
    node_s=0.05,
    separate_weights=False,
)
LENGTHS = tuple(RequestLength(20 + 37 * n % 900, 5 + 11 * n % 300) for n in range(60))


def asked(**changes: object) -> PlanRequest:
    """The request with other values."""
    return dataclasses.replace(REQUEST, **changes)  # type: ignore[arg-type]


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    """Any traffic that a server of its limits accepts."""
    max_model_len = draw(st.integers(2, 700))
    requests = []
    for _ in range(draw(st.integers(1, 6))):
        prompt = draw(st.integers(1, max_model_len - 1))
        output = draw(st.integers(0, max_model_len - prompt))
        requests.append(RequestLength(prompt, output, draw(st.integers(0, prompt - 1))))
    means = draw(st.lists(st.floats(0.1, 40), min_size=1, max_size=3))
    return Traffic(
        tuple(requests),
        tuple(means),
        draw(st.integers(1, 40)),
        max_model_len,
        draw(st.sampled_from([1, 16, 64, 128])),
    )
