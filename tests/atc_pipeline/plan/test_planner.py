"""A whole plan, its report and its picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atc_pipeline.atc.jobs import Layout
from atc_pipeline.plan.budget import GIB
from atc_pipeline.plan.planner import Plan, make_plan, programs_of
from atc_pipeline.plan.plot import draw_plan
from atc_pipeline.plan.report import plan_json, plan_text
from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.errors import ConfigError
from tests.atc_pipeline.plan.plan_cases import LARGE, LENGTHS, SMALL, asked

DEFAULT = (
    *(Bucket(Phase.PREFILL, 1, tokens, 16) for tokens in (32, 512)),
    *(Bucket(Phase.DECODE, batch, 1, 16) for batch in (1, 16)),
)


def planned(**changes: object) -> Plan:
    return make_plan(SMALL, LENGTHS, DEFAULT, asked(**changes))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned()


def test_a_plan_covers_and_is_better_than_the_default(plan: Plan) -> None:
    table = BucketTable(plan.buckets, 128)
    table.require_cover(16, 2048)
    assert plan.after.both.padded_s < plan.before.both.padded_s
    assert plan.after.both.waste < plan.before.both.waste
    assert plan.gears.buckets == plan.buckets
    assert plan.gears.num_blocks == plan.budget.num_blocks == 16 * 16 + 1


@pytest.mark.parametrize(
    ("layout", "most", "num_oms"),
    [(Layout.PER_PHASE, 8, 2), (Layout.UNIFIED, 4, 1), (Layout.STATIC, 4, 4)],
)
def test_the_limit_counts_by_layout(layout: Layout, most: int, num_oms: int) -> None:
    found = planned(layout=layout)
    assert len(found.buckets) <= most
    assert found.build.num_oms == num_oms == len(programs_of(found.buckets, layout))


def test_separate_weights_are_budgeted() -> None:
    one, two = planned(), planned(separate_weights=True)
    assert two.budget.items[0].num_bytes == 2 * one.budget.items[0].num_bytes


def test_a_build_budget_limits_the_gears() -> None:
    """Two OMs take 2 minutes and a gear of 1,710 nodes 85.5 s, so 8 minutes allow 4 gears."""
    found = planned(build_budget_s=8 * 60.0)
    assert len(found.buckets) == 4
    assert found.build.seconds == pytest.approx(120 + 4 * 1710 * 0.05)
    with pytest.raises(ConfigError, match=r"4\.0 minutes allows no build.*4\.\d minutes"):
        planned(build_budget_s=240.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memory_bytes": 0}, "--memory is 0"),
        ({"block_size": 0}, "--block-size is 0"),
        ({"max_model_len": 1}, "--max-model-len is 1"),
        ({"max_num_seqs": 0}, "--max-num-seqs is 0"),
        ({"max_gears": 0}, "--max-gears is 0"),
        ({"max_gears": 1, "layout": Layout.UNIFIED}, "wanted at least 2"),
        ({"max_gears": 101}, "at most 100"),
        ({"max_chunk_tokens": 1}, "--max-chunk-tokens is 1"),
        ({"concurrency": ()}, "--concurrency"),
        ({"concurrency": (1.0, 0.0)}, "--concurrency"),
        ({"concurrency": (float("nan"),)}, "--concurrency"),
        ({"node_s": 0.0}, "--seconds-per-node"),
        ({"node_s": 1e308}, "--seconds-per-node .* at most 3600"),
    ],
)
def test_values_out_of_range(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        asked(**changes)


def test_a_model_that_is_too_large_is_refused() -> None:
    with pytest.raises(ConfigError, match="the model does not fit"):
        make_plan(LARGE, LENGTHS, DEFAULT, asked(memory_bytes=8 * GIB))


def test_the_text_says_what_is_estimated(plan: Plan) -> None:
    text = plan_text(plan)
    for part in (
        "60 requests; 0 more have prompts beyond max_model_len 2048",
        "never measured",
        "KV pool, 257 blocks",
        "of   2048 tokens: 16",
        "num_blocks 257 of 128 tokens",
        "8 gears x 1710 nodes",
    ):
        assert part in text
    for bucket in plan.buckets:
        row = f"{bucket.batch:4}  {bucket.tokens:6}  {bucket.past_blocks:11}"
        assert row in text


def test_the_json_carries_the_same_numbers(plan: Plan) -> None:
    plain = json.loads(plan_json(plan))
    assert plain["gears"] == json.loads(plan.gears.to_json())
    assert plain["memory"]["num_blocks"] == 257
    assert plain["memory"]["sequences"]["2048"] == 16
    assert plain["cost"]["after"]["both"]["padded_s"] == plan.after.both.padded_s
    assert plain["cost"]["before"]["num_buckets"] == 4
    assert plain["build_estimate"]["measured"] is False
    assert plain["requests"]["concurrency"] == [1.0, 8.0]


def test_the_picture_is_a_png(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.png"
    draw_plan(plan, path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(ConfigError, match=r"wanted a name that ends in .png"):
        draw_plan(plan, tmp_path / "plan.jpg")
    with pytest.raises(ConfigError, match="cannot write the plot"):
        draw_plan(plan, tmp_path / "absent" / "plan.png")
