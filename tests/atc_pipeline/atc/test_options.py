from __future__ import annotations

import pytest

from atc_pipeline.atc.options import AtcOptions, ExternalWeight, build_atc_argv, parse_atc_flags
from omruntime.errors import ConfigError


def options(**changes: object) -> AtcOptions:
    given: dict[str, object] = {
        "model": "../step.onnx",
        "output": "decode",
        "soc_version": "Ascend310P3",
        "input_shape": "input_ids:-1,1",
        "dynamic_dims": "1;4",
    }
    return AtcOptions(**(given | changes))  # type: ignore[arg-type]


def test_the_whole_command_line() -> None:
    assert build_atc_argv(options(external_weight=ExternalWeight.FILES)) == (
        "--framework=5",
        "--model=../step.onnx",
        "--output=decode",
        "--soc_version=Ascend310P3",
        "--input_format=ND",
        "--input_shape=input_ids:-1,1",
        "--dynamic_dims=1;4",
        "--precision_mode_v2=origin",
        "--external_weight=1",
        "--log=error",
    )


def test_a_static_program_has_no_gears() -> None:
    assert not any("dynamic_dims" in word for word in build_atc_argv(options(dynamic_dims="")))


def test_more_flags_come_last_and_may_replace_the_log_level() -> None:
    argv = build_atc_argv(options(extra=(("log", "debug"), ("op_debug_level", "1"))))
    assert argv[-2:] == ("--log=debug", "--op_debug_level=1")
    assert "--log=error" not in argv


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"soc_version": "Ascend310P"}, "soc_version is 'Ascend310P', wanted one of"),
        ({"extra": (("precision_mode", "force_fp16"),)}, "E10056: .*exclude each other"),
        ({"extra": (("dynamic_batch_size", "1,2"),)}, "E10009"),
        ({"extra": (("core_type", "GpuCore"),)}, "E10001: --core_type is 'GpuCore'"),
        ({"extra": (("no_such", "1"),)}, "unknown flag: --no_such"),
        ({"extra": (("soc_version", "Ascend910"),)}, "decided by the build"),
    ],
)
def test_what_atc_would_refuse_is_refused_before_it_runs(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        options(**changes)


def test_flags_as_words() -> None:
    assert parse_atc_flags(("--log=debug", "keep_dtype=a=b")) == (
        ("log", "debug"),
        ("keep_dtype", "a=b"),
    )


@pytest.mark.parametrize("words", [("log",), ("=debug",), ("log=",), ("log=a", "--log=b")])
def test_words_that_are_no_flags(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="--atc-flag"):
        parse_atc_flags(words)
