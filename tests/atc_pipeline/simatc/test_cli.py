"""The command as a whole: words, codes, exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import helper

from atc_pipeline.simatc.cli import main
from tests.atc_pipeline.simatc.graphs import Flags, make_model, one_node, save, value

Capture = pytest.CaptureFixture[str]
FAILED = 255


def test_success_says_what_atc_says_and_that_it_is_a_simulation(
    flags: Flags, capsys: Capture
) -> None:
    assert flags.run() == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "ATC start working now, please wait for a moment.",
        "ATC run success, welcome to the next use.",
    ]
    assert err
    assert all(line.startswith("simatc: SIMULATION: ") for line in err.splitlines())
    assert (flags.folder / "out.om").is_file()


REFUSED: dict[str, tuple[dict[str, str | None], str]] = {
    "no framework": ({"framework": None}, "E10007"),
    "an unknown framework": ({"framework": "4"}, "E10007"),
    "no model": ({"model": None}, "E10054"),
    "no output": ({"output": None}, "E10054"),
    "no soc": ({"soc_version": None}, "E10054"),
    "an unknown soc": ({"soc_version": "Ascend310P"}, "E10001"),
    "a model that is absent": ({"model": "absent.onnx"}, "E13026"),
    "an output without a name": ({"output": "folder/"}, "E10022"),
    "a long output": ({"output": "o" * 300}, "E10021"),
    "a value outside of its set": ({"input_format": "NHCW"}, "E10001"),
    "a switch that is neither 0 nor 1": ({"external_weight": "5"}, "E10006"),
    "a bad log level": ({"log": "loud"}, "E10010"),
    "a number that is none": ({"virtual_type": "one"}, "E10003"),
    "two precision modes": (
        {"precision_mode": "force_fp16", "precision_mode_v2": "origin"},
        "E10056",
    ),
    "two kinds of gears": ({"dynamic_batch_size": "1,2"}, "E10009"),
    "gears without ND": ({"input_format": "NCHW"}, "E10004"),
    "gears without shapes": ({"input_shape": None}, "E10004"),
    "one gear": ({"dynamic_dims": "1,4"}, "E10035"),
    "too many gears": ({"dynamic_dims": ";".join(f"1,{n}" for n in range(1, 102))}, "E10036"),
    "gears of different lengths": ({"dynamic_dims": "1,4;2"}, "E10037"),
    "a gear of zero": ({"dynamic_dims": "1,4;0,8"}, "E10038"),
    "a gear of letters": ({"dynamic_dims": "1,4;2,x"}, "E10038"),
    "a gear twice": ({"dynamic_dims": "1,4;1,4"}, "E10039"),
    "a range beside gears": ({"input_shape": "ids:-1,1~8;scale:1"}, "E10040"),
    "gears without -1": ({"input_shape": "ids:1,4;scale:1"}, "E10040"),
    "more -1 than values": ({"dynamic_dims": "1;2"}, "E10045"),
    "more values than -1": ({"dynamic_dims": "1,4,1;2,8,1"}, "E10046"),
    "a shape without colon": ({"input_shape": "ids"}, "E10002"),
    "a shape of letters": ({"input_shape": "ids:a,-1;scale:1"}, "E10002"),
    "a dimension of zero": ({"input_shape": "ids:-1,-1;scale:0"}, "E10011"),
    "an input that is absent": ({"input_shape": "idz:-1,-1;scale:1"}, "E10016"),
    "a node as input": ({"input_shape": "embed:-1,-1;scale:1"}, "E10017"),
    "another rank": ({"input_shape": "ids:-1,-1;scale:1,1"}, "E10049"),
    "an input left out beside gears": ({"input_shape": "ids:-1,-1"}, "E10001"),
    "an open dimension": ({"input_shape": "scale:1", "dynamic_dims": None}, "E10001"),
}


@pytest.mark.parametrize(("changes", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_a_command_line_is_refused_with_the_code_of_atc(
    flags: Flags, capsys: Capture, changes: dict[str, str | None], code: str
) -> None:
    assert flags.run(**changes) == FAILED
    out = capsys.readouterr().out
    assert "ATC run failed, Please check the detail log" in out
    assert [line for line in out.splitlines() if line.startswith(f"{code}: ")], out
    assert not list(flags.folder.glob("*.om"))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--no_such_flag=1", "unknown command line flag 'no_such_flag'"),
        ("--log", "flag --log is missing its argument"),
        ("stray", "got the argument 'stray'"),
    ],
)
def test_an_unknown_flag_is_named_on_stderr_without_a_code(
    flags: Flags, capsys: Capture, word: str, said: str
) -> None:
    assert main([*flags.argv(), word], {}) == FAILED
    out, err = capsys.readouterr()
    assert said in err
    assert "E1" not in out


def test_one_dash_does_as_well(flags: Flags) -> None:
    assert main([word.removeprefix("-") for word in flags.argv()], {}) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"framework": "3"},
        {"mode": "6"},
        {"out_nodes": "scaled:0"},
        {"output_type": "FP32"},
        {"input_shape": "ids:-1,4;scale:1", "dynamic_dims": None},
        {"input_shape": "ids:1~2,4;scale:1", "dynamic_dims": None},
    ],
)
def test_what_is_not_simulated_is_refused_by_name(
    flags: Flags, capsys: Capture, changes: dict[str, str | None]
) -> None:
    assert flags.run(**changes) == FAILED
    out, err = capsys.readouterr()
    assert "not simulated" in err
    assert "E1" not in out


def test_flags_without_effect_are_named(flags: Flags, capsys: Capture) -> None:
    assert flags.run(precision_mode_v2="origin", op_debug_level="0") == 0
    assert "without effect here: --precision_mode_v2, --op_debug_level" in capsys.readouterr().err


RELU = helper.make_node("Relu", ["x"], ["y"], "relu")


def without(model: onnx.ModelProto, field: str) -> onnx.ModelProto:
    model.graph.ClearField(field)
    return model


def with_functions() -> onnx.ModelProto:
    """A call of a function that the model itself defines, which the parser does not read."""
    model = one_node(helper.make_node("Own", ["x"], ["y"], "own"))
    opsets = [helper.make_opsetid("", 18)]
    function = helper.make_function("ai.onnx", "Own", ["x"], ["y"], [RELU], opsets)
    model.functions.append(function)
    return model


def without_domain() -> onnx.ModelProto:
    model = one_node(helper.make_node("NPUGeluV2", ["x"], ["y"], "gelu", domain="npu"))
    del model.opset_import[1:]
    return model


def of_opset(version: int) -> onnx.ModelProto:
    model = one_node(RELU)
    model.opset_import[0].version = version
    return model


BAD_MODELS = {
    "no inputs": (without(one_node(RELU), "input"), "E16001"),
    "no outputs": (without(one_node(RELU), "output"), "E16001"),
    "no graph": (onnx.ModelProto(ir_version=9), "E16004"),
    "an opset without plugins": (of_opset(19), "E16002: ", "ai.onnx::19::Relu"),
    "an operator without plugin": (
        one_node(helper.make_node("Loop", ["x"], ["y"], "loop")),
        "E16002",
    ),
    "a contrib operator": (
        one_node(helper.make_node("Gelu", ["x"], ["y"], "gelu", domain="com.microsoft")),
        "E19999",
    ),
    "a function": (with_functions(), "E16002"),
    "a domain that is not imported": (without_domain(), "E19999"),
    "an output without a name": (
        one_node(helper.make_node("Dropout", ["x"], ["y", ""], "drop")),
        "E19999",
    ),
    "a constant without value": (
        one_node(helper.make_node("Constant", [], ["y"], "c", value_float=1.0)),
        "E19999",
    ),
    "a name twice": (
        make_model(
            [
                helper.make_node("Relu", ["x"], ["z"], "same"),
                helper.make_node("Relu", ["z"], ["y"], "same"),
            ],
            [value("x", 10, [1, 4])],
            [value("y", 10, [1, 4])],
        ),
        "E13009",
    ),
}


@pytest.mark.parametrize("case", BAD_MODELS.values(), ids=BAD_MODELS.keys())
def test_a_model_is_refused_with_the_code_of_atc(
    tmp_path: Path, capsys: Capture, case: tuple[onnx.ModelProto, ...]
) -> None:
    model, *texts = case
    save(model, tmp_path, are_weights_outside=False)
    assert Flags(tmp_path).run(input_shape="x:1,4", dynamic_dims=None) == FAILED
    out = capsys.readouterr().out
    for text in texts:
        assert str(text) in out


@pytest.mark.parametrize("content", [b"", b"\xff" * 40])
def test_what_is_no_onnx_file_is_refused(flags: Flags, capsys: Capture, content: bytes) -> None:
    (flags.folder / "step.onnx").write_bytes(content)
    assert flags.run() == FAILED
    assert ("E13005: " if content else "E13015: ") in capsys.readouterr().out


def test_a_file_of_2_gib_is_refused_unread(flags: Flags, capsys: Capture) -> None:
    os.truncate(flags.folder / "step.onnx", 2**31)
    assert flags.run() == FAILED
    assert "E13015: " in capsys.readouterr().out


def change_external(folder: Path, key: str, text: str) -> None:
    path = folder / "step.onnx"
    model = onnx.load(path, load_external_data=False)
    (table,) = (t for t in model.graph.initializer if t.name == "table")
    entries = {e.key: e for e in table.external_data}
    entry = entries.get(key) or table.external_data.add()
    entry.key, entry.value = key, text
    onnx.save_model(model, path)


@pytest.mark.parametrize(
    ("key", "text", "code"),
    [
        ("checksum", "0a1b", "E10001"),
        ("location", "../step.weights", "E10001"),
        ("location", "/etc/passwd", "E10001"),
        ("location", "absent.weights", "E13001"),
        ("length", "8", "E13003"),
        ("offset", "999999", "E13003"),
    ],
)
def test_external_data_is_checked(
    flags: Flags, capsys: Capture, key: str, text: str, code: str
) -> None:
    change_external(flags.folder, key, text)
    assert flags.run() == FAILED
    assert f"{code}: " in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_named(flags: Flags, capsys: Capture) -> None:
    assert flags.run(output=str(flags.folder / "absent" / "out")) == FAILED
    assert "E13004: " in capsys.readouterr().out


def test_help_names_the_flags(capsys: Capture) -> None:
    assert main(["--help"], {}) == 0
    assert "--dynamic_dims" in capsys.readouterr().out


def test_a_failure_on_demand_is_labelled(flags: Flags, capsys: Capture) -> None:
    assert flags.run({"SIMATC_FAIL": "EZ3002"}) == FAILED
    out, err = capsys.readouterr()
    assert "EZ3002: " in out
    assert "injected by SIMATC_FAIL" in out
    assert "SIMATC_FAIL=EZ3002 injects a failure" in err


@pytest.mark.parametrize(
    ("name", "text"), [("SIMATC_SLEEP_S", "long"), ("SIMATC_CRASH", "SIGNONE")]
)
def test_a_demand_that_means_nothing_is_refused(
    flags: Flags, capsys: Capture, name: str, text: str
) -> None:
    assert flags.run({name: text}) == FAILED
    assert f"{name} is {text!r}" in capsys.readouterr().err


def test_as_a_process_it_dies_of_the_signal_asked_for(flags: Flags) -> None:
    command = [sys.executable, "-m", "atc_pipeline.simatc", *flags.argv()]
    environ = {**os.environ, "SIMATC_CRASH": "SIGKILL", "SIMATC_MEMORY_MIB": "1"}
    ended = subprocess.run(command, env=environ, capture_output=True, check=False, timeout=120)
    assert ended.returncode == -9
    assert b"simatc: SIMULATION: SIMATC_CRASH=SIGKILL injects a failure" in ended.stderr
