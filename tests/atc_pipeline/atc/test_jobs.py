from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atc_pipeline.atc import shapes
from atc_pipeline.atc.jobs import JobSettings, Layout, bucket_name, plan_jobs
from atc_pipeline.atc.options import ExternalWeight
from omruntime.buckets import Bucket, Phase
from omruntime.errors import BundleError, ConfigError
from tests.atc_pipeline.fake_ascend import BUCKETS, KV, PROGRAM, SOC, fake_jobs


def test_one_program_for_each_phase() -> None:
    prefill, decode = fake_jobs()
    assert (prefill.name, decode.name) == ("prefill", "decode")
    flags = decode.options.flags()
    assert flags["input_shape"] == (
        "input_ids:-1,-1;positions:-1,-1;block_tables:-1,-1;past_lens:-1;last_index:-1;"
        "kv_pool:144,8,16"
    )
    assert flags["dynamic_dims"] == "1,1,1,1,1,4,1,1;2,1,2,1,2,4,2,2"
    assert flags["model"] == "../step.onnx"
    assert decode.program.path == "programs/decode.om"
    assert decode.program.buckets == BUCKETS[:2]


def test_one_program_for_all() -> None:
    (job,) = fake_jobs(Layout.UNIFIED)
    assert job.program.path == "programs/step.om"
    assert len(job.gears) == 5
    assert job.options.external_weight is ExternalWeight.INSIDE


def test_one_program_for_each_bucket() -> None:
    jobs = fake_jobs(Layout.STATIC)
    assert [job.name for job in jobs] == [
        "decode_b1_t1_p4",
        "decode_b2_t1_p4",
        "prefill_b1_t8_p1",
        "prefill_b1_t16_p4",
        "prefill_b1_t32_p4",
    ]
    flags = jobs[1].options.flags()
    assert flags["input_shape"].startswith("input_ids:2,1;positions:2,1;block_tables:2,4;")
    assert "dynamic_dims" not in flags


def test_a_phase_with_one_bucket_becomes_a_static_program() -> None:
    """ATC wants two gears at least (E10035)."""
    program = dataclasses.replace(PROGRAM, buckets=BUCKETS[1:])
    _, decode = plan_jobs(program, KV, SOC, JobSettings())
    assert decode.gears == ()
    assert decode.options.dynamic_dims == ""
    assert "input_ids:2,1" in decode.options.input_shape


def test_weights_are_shared_where_there_are_several_programs() -> None:
    assert {job.options.external_weight for job in fake_jobs()} == {ExternalWeight.FILES}
    separate = plan_jobs(PROGRAM, KV, SOC, JobSettings(share_weights=False))
    assert {job.options.external_weight for job in separate} == {ExternalWeight.INSIDE}


def test_the_order_of_buckets_does_not_matter() -> None:
    program = dataclasses.replace(PROGRAM, buckets=BUCKETS[::-1])
    assert plan_jobs(program, KV, SOC, JobSettings()) == fake_jobs()


def test_more_gears_than_atc_takes() -> None:
    buckets = tuple(Bucket(Phase.DECODE, batch, 1, 4) for batch in range(1, 102))
    program = dataclasses.replace(PROGRAM, buckets=buckets)
    with pytest.raises(ConfigError, match=r"decode\.om would have 101 gears.*100 at most"):
        plan_jobs(program, KV, SOC, JobSettings())
    assert len(plan_jobs(program, KV, SOC, JobSettings(Layout.STATIC))) == 101


@pytest.mark.parametrize(
    ("bucket", "message"),
    [
        (Bucket(Phase.PREFILL, 1, 8, 0), "prefill_b1_t8_p0 has no past block"),
        (BUCKETS[2], "same gear twice"),
    ],
)
def test_buckets_that_atc_cannot_tell_apart(bucket: Bucket, message: str) -> None:
    program = dataclasses.replace(PROGRAM, buckets=(*BUCKETS, bucket))
    with pytest.raises(ConfigError, match=message):
        plan_jobs(program, KV, SOC, JobSettings())


def test_a_pool_without_a_size() -> None:
    with pytest.raises(BundleError, match="--num-blocks"):
        plan_jobs(PROGRAM, dataclasses.replace(KV, num_blocks=None), SOC, JobSettings())


def test_an_unknown_dimension() -> None:
    tensor = dataclasses.replace(PROGRAM.inputs[0], shape=("rows",))
    with pytest.raises(BundleError, match="dimension 'rows', wanted one of"):
        shapes.static_dims(tensor, shapes.bucket_sizes(BUCKETS[0], KV))


@given(batch=st.integers(1, 64), tokens=st.integers(1, 512), past=st.integers(1, 64))
def test_a_gear_filled_into_the_open_shapes_gives_the_bucket(
    batch: int, tokens: int, past: int
) -> None:
    bucket = Bucket(Phase.PREFILL, batch, tokens, past)
    values = iter(shapes.gear_values(PROGRAM.inputs, bucket, KV))
    filled = [
        tuple(next(values) if dim == -1 else dim for dim in shapes.gear_dims(spec, KV))
        for spec in PROGRAM.inputs
    ]
    assert next(values, None) is None
    sizes = shapes.bucket_sizes(bucket, KV)
    assert filled == [shapes.static_dims(spec, sizes) for spec in PROGRAM.inputs]
    assert bucket_name(bucket) == f"prefill_b{batch}_t{tokens}_p{past}"
