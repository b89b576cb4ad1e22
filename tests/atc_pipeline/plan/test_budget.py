"""The memory budget."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atc_pipeline.plan.budget import MAX_POOL_ELEMENTS, BudgetNeeds, make_budget
from atc_pipeline.soc import SOCS
from omruntime.buckets import Bucket, Phase
from omruntime.errors import ConfigError
from tests.atc_pipeline.plan.plan_cases import LARGE, SMALL

P3 = SOCS["Ascend310P3"]
PROGRAMS = (
    (Bucket(Phase.PREFILL, 1, 512, 16),),
    (Bucket(Phase.DECODE, 1, 1, 16), Bucket(Phase.DECODE, 16, 1, 16)),
)
NEEDS = BudgetNeeds(
    memory_bytes=24 << 30,
    reserve_bytes=1 << 30,
    programs=PROGRAMS,
    weight_copies=1,
    block_size=128,
    max_num_seqs=16,
    max_model_len=2048,
)


def needs(**changes: object) -> BudgetNeeds:
    return dataclasses.replace(NEEDS, **changes)  # type: ignore[arg-type]


def items(budget_needs: BudgetNeeds, soc: str = "Ascend310P3") -> dict[str, int]:
    budget = make_budget(SMALL, SOCS[soc], budget_needs)
    return {item.name: item.num_bytes for item in budget.items}


def test_items_by_hand() -> None:
    found = items(NEEDS)
    assert found["weights"] == 2 * (SMALL.num_parameters + 49152 * 576)
    token = SMALL.token_bytes
    layer = token // 30
    prefill = 2048 * layer + 2 * 9 * 512 * 2560 * 2 + 4 * 512 * 2112 * 2 + 49152 * 4
    decode = 16 * 2048 * layer + 2 * 9 * 16 * 2049 * 2 + 4 * 16 * 2112 * 2 + 16 * 49152 * 4
    assert found["work memory"] == prefill + decode
    prefill_io = (2 * 512 + 18) * 4 + 49152 * 4 + 512 * token
    decode_io = (2 * 16 + 16 * 18) * 4 + 16 * 49152 * 4 + 16 * token
    assert found["inputs and outputs"] == 2 * (prefill_io + decode_io)
    assert found["reserve"] == 1 << 30


def test_separate_weights_count_for_each_program() -> None:
    assert items(needs(weight_copies=2))["weights x 2"] == 2 * items(NEEDS)["weights"]


def test_a_310b_gathers_all_layers_at_once() -> None:
    assert items(NEEDS, "Ascend310B1")["work memory"] > 5 * items(NEEDS)["work memory"]


@pytest.mark.parametrize(
    ("changes", "num_blocks", "reason"),
    [
        ({}, 16 * 16 + 1, "need"),
        ({"max_num_seqs": 999, "programs": PROGRAMS[1:]}, None, "elements"),
        ({"memory_bytes": 2 << 30, "max_num_seqs": 999, "programs": PROGRAMS[1:]}, None, "memory"),
    ],
)
def test_what_limits_the_pool(
    changes: dict[str, object], num_blocks: int | None, reason: str
) -> None:
    budget = make_budget(SMALL, P3, needs(**changes))
    assert reason in budget.limited_by
    assert num_blocks is None or budget.num_blocks == num_blocks
    elements = budget.num_blocks * 128 * SMALL.token_elements
    assert elements <= MAX_POOL_ELEMENTS
    more = 128 * SMALL.token_elements
    assert (elements + more > MAX_POOL_ELEMENTS) == (reason == "elements")
    assert (budget.free_bytes < budget.block_bytes) == (reason == "memory")


@given(
    memory=st.integers(0, 40 << 30),
    seqs=st.integers(1, 300),
    length=st.integers(2, 40_000),
    block_size=st.sampled_from([16, 64, 128]),
)
def test_a_budget_adds_up_and_holds_a_longest_sequence_or_is_refused(
    memory: int, seqs: int, length: int, block_size: int
) -> None:
    asked = needs(
        memory_bytes=memory, max_num_seqs=seqs, max_model_len=length, block_size=block_size
    )
    try:
        budget = make_budget(LARGE, P3, asked)
    except ConfigError:
        return
    assert sum(i.num_bytes for i in budget.items) + budget.pool_bytes <= memory
    assert budget.free_bytes >= 0
    assert budget.sequences_of(length) >= 1
    assert budget.num_blocks * block_size * LARGE.token_elements <= MAX_POOL_ELEMENTS


def test_weights_that_do_not_fit_are_refused_by_how_much() -> None:
    fits = make_budget(LARGE, P3, needs(max_num_seqs=1, max_model_len=128))
    least = sum(item.num_bytes for item in fits.items)
    short = needs(max_num_seqs=1, max_model_len=128, memory_bytes=least - (5 << 20))
    with pytest.raises(ConfigError, match=r"weights 12,852\.\d MiB.*5\.0 MiB more than") as error:
        make_budget(LARGE, P3, short)
    assert "--separate-weights" not in str(error.value)
    copied = dataclasses.replace(short, weight_copies=2)
    with pytest.raises(ConfigError, match="no --separate-weights"):
        make_budget(LARGE, P3, copied)


def test_a_longest_sequence_that_does_not_fit_is_refused_with_what_does() -> None:
    """Of seven billion weights with all heads, the compiler counts 63 blocks of 128 tokens."""
    with pytest.raises(ConfigError, match=r"elements a tensor.*--max-model-len to (\d+)") as error:
        make_budget(LARGE, P3, needs(max_model_len=8192, max_num_seqs=1))
    found = re.search(r"--max-model-len to (\d+)", str(error.value))
    assert found is not None
    longest = int(found[1])
    make_budget(LARGE, P3, needs(max_model_len=longest, max_num_seqs=1))
    with pytest.raises(ConfigError):
        make_budget(LARGE, P3, needs(max_model_len=longest + 1, max_num_seqs=1))


def test_room_for_no_block_is_not_mended_by_shorter_sequences() -> None:
    fits = make_budget(LARGE, P3, needs(max_num_seqs=1, max_model_len=128))
    least = sum(item.num_bytes for item in fits.items)
    short = needs(max_num_seqs=1, max_model_len=128, memory_bytes=least)
    with pytest.raises(ConfigError, match="smaller model, fewer or smaller buckets") as error:
        make_budget(LARGE, P3, short)
    assert "--max-model-len" not in str(error.value)
