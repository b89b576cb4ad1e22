"""The cost model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atc_pipeline.plan.cost import CostModel
from atc_pipeline.soc import SOCS, find_soc
from omruntime.buckets import Bucket, Phase
from omruntime.errors import ConfigError
from tests.atc_pipeline.plan.plan_cases import LARGE, SMALL

P3 = SOCS["Ascend310P3"]
MODEL = CostModel(P3, LARGE, 128)


@given(
    st.tuples(st.integers(1, 64), st.integers(1, 1024), st.integers(0, 64)),
    st.tuples(st.integers(0, 8), st.integers(0, 64), st.integers(0, 8)),
)
def test_a_larger_shape_never_costs_less(
    shape: tuple[int, int, int], more: tuple[int, int, int]
) -> None:
    larger = [a + b for a, b in zip(shape, more, strict=True)]
    assert MODEL.shape_seconds(*larger) >= MODEL.shape_seconds(*shape) > 0


def test_a_single_row_reads_the_weights_and_a_long_chunk_computes() -> None:
    one = MODEL.seconds(Bucket(Phase.DECODE, 1, 1, 1))
    weights_s = LARGE.step_weight_bytes / P3.memory_bytes_per_s
    assert weights_s < one < 1.1 * weights_s
    tokens = 1024
    chunk_s = MODEL.shape_seconds(1, tokens, 1)
    least_s = 2 * LARGE.layer_parameters * tokens / P3.float16_flops_per_s
    assert least_s < chunk_s < 1.2 * least_s


def test_peaks_of_the_chip_files() -> None:
    assert P3.float16_flops_per_s == pytest.approx(69.5e12, rel=0.01)
    assert P3.memory_bytes_per_s == pytest.approx(207e9, rel=0.01)
    assert SOCS["Ascend310B4"].memory_bytes_per_s == pytest.approx(4e9)
    with pytest.raises(ConfigError, match=r"'310P3' is not a chip.*Ascend310P3"):
        find_soc("310P3")


def test_sizes_that_follow_from_others() -> None:
    assert SMALL.token_elements == 30 * 2 * 3 * 64
    assert SMALL.layer_parameters == 134_515_008 - 49152 * 576
    assert SMALL.device_weight_bytes == 2 * (134_515_008 + 49152 * 576)
    assert LARGE.layer_parameters == 6_738_415_616 - 2 * 32000 * 4096
    assert LARGE.device_weight_bytes == 2 * 6_738_415_616
    assert LARGE.step_weight_bytes == 2 * (6_738_415_616 - 32000 * 4096)
