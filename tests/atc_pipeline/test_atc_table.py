from __future__ import annotations

import pytest

from atc_pipeline.atc_table import find_error_codes, load_atc_table

TABLE = load_atc_table()
GOOD = {"framework": "5", "input_format": "ND", "input_shape": "x:-1", "dynamic_dims": "1;2"}


def codes(**flags: str) -> list[str]:
    return [refusal.code for refusal in TABLE.find_refusals(GOOD | flags)]


def test_what_the_build_asks_for_is_accepted() -> None:
    assert codes(soc_version="Ascend310P3", precision_mode_v2="origin", log="error") == []


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ({"framework": "7"}, "E10007"),
        ({"framework": "onnx"}, "E10003"),
        ({"log": "loud"}, "E10010"),
        ({"external_weight": "3"}, "E10006"),
        ({"precision_mode_v2": "fp32"}, "E10001"),
        ({"unheard_of": "1"}, ""),
        ({"precision_mode": "force_fp16", "precision_mode_v2": "fp16"}, "E10056"),
        ({"dynamic_batch_size": "1,2"}, "E10009"),
        ({"insert_op_conf": "aipp.cfg"}, "E10001"),
        ({"input_shape": ""}, "E10004"),
        ({"input_format": "NCHW"}, "E10004"),
    ],
)
def test_what_atc_would_refuse_is_found_with_its_code(flags: dict[str, str], code: str) -> None:
    assert code in codes(**flags)


def test_exclusions_name_both_flags() -> None:
    (refusal,) = TABLE.find_refusals({"precision_mode": "force_fp16", "precision_mode_v2": "fp16"})
    assert "--precision_mode and --precision_mode_v2" in refusal.reason


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("E10035", "fewer than 2 gears"),
        ("EZ9999", "internal error of operators and aclnn"),
        ("E29999", "internal error of FE"),
        ("EE1001", "an error of Runtime"),
        ("E55555", ""),
    ],
)
def test_meanings(code: str, words: str) -> None:
    assert words in TABLE.meaning_of(code)
    assert bool(TABLE.meaning_of(code)) == bool(words)


def test_error_codes_of_a_text_come_in_order_and_once() -> None:
    text = "[E19999] W11001 EZ9999: x E19999, not E1999 or XE199999 or E10035x"
    assert find_error_codes(text) == ("E19999", "EZ9999")


def test_socs_are_the_names_of_chip_files() -> None:
    assert {"Ascend310P3", "Ascend310B4"} <= set(TABLE.soc_versions)
    assert "Ascend310P" not in TABLE.soc_versions
