"""Which device has which profile, and what a fixed pool may be."""

from __future__ import annotations

import dataclasses

import pytest

from export.profiles import (
    ASCEND310B,
    ASCEND310P,
    CPU,
    PoolNeeds,
    Profile,
    fixed_num_blocks,
    profile_for_target,
    require_rows_fit,
)
from omruntime.errors import ConfigError

# Of SmolLM2-135M: 30 layers, 3 KV heads of 64.
NEEDS = PoolNeeds(
    token_elements=30 * 2 * 3 * 64, block_size=128, blocks_per_sequence=16, max_num_seqs=32
)


@pytest.mark.parametrize(
    ("target", "profile"),
    [
        ("cpu", CPU),
        *((f"Ascend310P{i}", ASCEND310P) for i in (1, 3, 5, 7)),
        *((f"Ascend310B{i}", ASCEND310B) for i in (1, 2, 3, 4)),
    ],
)
def test_each_device_has_its_profile(target: str, profile: Profile) -> None:
    assert profile_for_target(target) is profile


@pytest.mark.parametrize("target", ["", "ascend310p3", "Ascend310P", "Ascend910B1", "CPU"])
def test_an_unknown_target_is_refused_by_name(target: str) -> None:
    with pytest.raises(ConfigError, match=f"target is '{target}', wanted one of cpu, Ascend310P1"):
        profile_for_target(target)


def test_the_default_pool_holds_every_sequence_and_the_null_block() -> None:
    assert fixed_num_blocks(ASCEND310P, NEEDS, None) == 32 * 16 + 1
    assert fixed_num_blocks(ASCEND310P, NEEDS, 100) == 100
    assert fixed_num_blocks(CPU, NEEDS, None) is None


def test_the_default_pool_ends_where_atc_can_count_no_further() -> None:
    """Llama 2 7B: 32 layers of 32 KV heads of 128; 8191 tokens are below 2**31 elements."""
    needs = dataclasses.replace(NEEDS, token_elements=32 * 2 * 32 * 128)
    assert fixed_num_blocks(ASCEND310P, needs, None) == 63
    with pytest.raises(ConfigError, match=r"num_blocks is 64, wanted at most 63.*32 bits"):
        fixed_num_blocks(ASCEND310P, needs, 64)


def test_blocks_that_no_pool_holds_are_refused() -> None:
    needs = dataclasses.replace(NEEDS, block_size=9_999_999, blocks_per_sequence=1)
    with pytest.raises(ConfigError, match=r"block_size is 9999999: 2 blocks .* lower block_size"):
        fixed_num_blocks(ASCEND310P, needs, None)


def test_a_pool_below_one_sequence_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"num_blocks is 16, wanted at least 17.*lower max_model"):
        fixed_num_blocks(ASCEND310P, NEEDS, 16)
    needs = dataclasses.replace(NEEDS, token_elements=32 * 2 * 32 * 128, blocks_per_sequence=63)
    with pytest.raises(ConfigError, match=r"num_blocks is 63, wanted at least 64.*at most 63"):
        fixed_num_blocks(ASCEND310P, needs, None)


@pytest.mark.parametrize("token_elements", [1 * 2 * 1 * 8, 3 * 2 * 1 * 40])
def test_tokens_that_do_not_align_are_refused(token_elements: int) -> None:
    """pyACL copies on the device between addresses of 64 bytes."""
    needs = dataclasses.replace(NEEDS, token_elements=token_elements)
    with pytest.raises(ConfigError, match=f"{2 * token_elements} bytes, wanted a multiple of 64"):
        fixed_num_blocks(ASCEND310B, needs, None)


def test_rows_beyond_the_rotary_operator_are_refused() -> None:
    require_rows_fit(ASCEND310P, 999)
    require_rows_fit(ASCEND310B, 5000)
    with pytest.raises(ConfigError, match="max_num_seqs is 1000, wanted at most 999"):
        require_rows_fit(ASCEND310P, 1000)
