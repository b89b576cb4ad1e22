"""The table of `npu-smi info`, in the forms that were seen, and in forms that were not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omruntime.doctor.npu_smi import Chip, parse_npu_smi
from tests.omruntime.doctor.machines import NPU_SMI_310B, NPU_SMI_DUO, NPU_SMI_OLD


def test_both_chips_of_a_300i_duo() -> None:
    parsed = parse_npu_smi(NPU_SMI_DUO)
    assert parsed.driver_version == "25.5.0"
    assert parsed.chips == (
        Chip(2, 0, 0, "310P3", "OK", 1529, 44280, (0, 0)),
        Chip(2, 1, 1, "310P3", "OK", 1412, 43693, (0, 0)),
    )


def test_a_310b_board() -> None:
    assert parse_npu_smi(NPU_SMI_310B).chips == (
        Chip(0, 0, 0, "310B1", "OK", 957, 10810, (15, 15)),
    )


def test_an_older_table_without_a_device_column() -> None:
    parsed = parse_npu_smi(NPU_SMI_OLD)
    assert parsed.driver_version == "25.0.rc1.1"
    assert parsed.chips == (Chip(0, 0, None, "310P3", "OK", 1460, 44280, (0, 0)),)


def test_processes_are_not_chips() -> None:
    row = "| 2       310P3                 | 4711            | om-serve                 | 900 |\n"
    assert parse_npu_smi(NPU_SMI_DUO + row + row).chips == parse_npu_smi(NPU_SMI_DUO).chips


@given(st.text(alphabet=st.sampled_from("|+-= 0123456789OK/310P\n\t٣\x00é"), max_size=400))
def test_any_text_gives_a_table_of_some_size(text: str) -> None:
    for chip in parse_npu_smi(text).chips:
        assert chip.npu_id >= 0
        assert chip.name


@given(st.integers(0, len(NPU_SMI_DUO)), st.integers(0, len(NPU_SMI_DUO)))
def test_a_table_that_was_cut_gives_no_chip_that_is_not_there(start: int, end: int) -> None:
    whole = parse_npu_smi(NPU_SMI_DUO).chips
    for chip in parse_npu_smi(NPU_SMI_DUO[start:end]).chips:
        assert chip in whole
