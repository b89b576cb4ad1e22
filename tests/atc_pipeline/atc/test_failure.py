from __future__ import annotations

import pytest

from atc_pipeline.atc.failure import FailedRun, atc_error
from atc_pipeline.atc.find import AtcTool
from atc_pipeline.atc.run import AtcResult
from tests.atc_pipeline.fake_ascend import fake_jobs

TOOL = AtcTool(("/opt/cann/bin/atc",), "8.5.0", False, "PATH")
START = "ATC start working now, please wait for a moment.\n...\n"
FAILED = START + (
    "ATC run failed, Please check the detail log, Try 'atc --help' for more information\n"
)


def message(output: str, exit_code: int = 255, *, timed_out: bool = False) -> str:
    result = AtcResult(exit_code, timed_out, output, 1.0)
    run = FailedRun(TOOL, fake_jobs()[1], result, 3600, "/logs/decode/atc.log")
    return str(atc_error(run))


def test_a_refused_flag() -> None:
    text = message(FAILED + "E10035: [PID: 7] 2026-01-01 The number of gears is 1.\n")
    lines = text.splitlines()
    assert lines[0] == "programs/decode.om: atc failed with exit code 255"
    assert lines[1] == "  asked: 2 gears for Ascend310P3"
    assert lines[2].startswith("  E10035: fewer than 2 gears; atc says: [PID: 7] 2026-01-01 The")
    assert "  log: /logs/decode/atc.log" in lines
    assert "do: atc refused a flag" in text
    assert "command: /opt/cann/bin/atc --framework=5 --model=../step.onnx" in text
    assert lines[-1].startswith("    E10035")


def test_gear_and_node_of_a_kernel_that_is_missing() -> None:
    text = message(
        FAILED + "EZ3003: No supported Ops kernel and engine are found for "
        "[/layers.3/Add_ascend_mbatch_batch_1], optype [AddDsl].\n"
    )
    assert "gear: 1, bucket decode_b2_t1_p4" in text
    assert "node: /layers.3/Add\n" in text
    assert "do: the device has no kernel for this operator" in text


def test_a_gear_that_nobody_asked_for_is_still_named() -> None:
    assert "gear: 17\n" in message("op x_ascend_mbatch_batch_17 failed")


@pytest.mark.parametrize(
    ("output", "node"),
    [
        ("E19010: No parser is registered for Op [div node, optype [ai.onnx::9::D]].", "div node"),
        (
            "E16002: No parser is registered for Op [/a/Div_1, optype [ai.onnx::23::Div]].",
            "/a/Div_1",
        ),
        ("E19999: Node:/model/MatMul_3 infer shape failed", "/model/MatMul_3"),
        ("EZ9999: op_name = 'layers.0/Cast', tiling failed", "layers.0/Cast"),
        ("E19999: build graph failed, graph id:0, ret:-1", None),
    ],
)
def test_nodes_in_the_forms_of_messages(output: str, node: str | None) -> None:
    text = message(FAILED + output)
    assert (f"  node: {node}\n" in text) if node else ("  node: " not in text)


def test_operators_without_plugin_lead_to_the_lint() -> None:
    assert "export-om lint" in message(FAILED + "E16002: No parser is registered for Op [x, y].")


def test_every_code_is_told_in_order() -> None:
    text = message(FAILED + "E19999: Inner Error!\nEZ9999: tiling failed\n        E19999 again")
    assert text.index("E19999: internal error; atc says: Inner Error!") < text.index(
        "EZ9999: internal error of operators and aclnn; atc says: tiling failed"
    )
    assert text.count("E19999: internal error") == 1


def test_killed_for_lack_of_memory() -> None:
    """BL-11: named, with what to do."""
    text = message(START, 137)
    assert "atc was killed (exit code 137, SIGKILL), most likely by the kernel" in text
    assert "do: give the build more memory, run --jobs 1" in text


def test_other_deaths() -> None:
    assert "atc died of SIGSEGV (exit code 139)" in message(START, 139)
    text = message(START, 137, timed_out=True)
    assert "atc was ended after its time limit of 3600 s" in text
    assert "do: raise --atc-timeout-s" in text


def test_success_without_an_om() -> None:
    assert "reported success but wrote no OM" in message("ATC run success", 0)


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("atc.bin: error while loading shared libraries: libascend_hal.so: cannot", "devlib"),
        ("EC0010: Failed to import Python module [No module named 'decorator'.]", "set_env.sh"),
        ("write failed: No space left on device", "the disk is full"),
        ("E40000: Failed to import te.platform.log_util.", "set_env.sh"),
        ("nothing known", "--atc-flag log=debug"),
    ],
)
def test_advice(output: str, advice: str) -> None:
    do = next(ln for ln in message(output).splitlines() if ln.startswith("  do: "))
    assert advice in do


def test_only_the_last_lines_are_shown() -> None:
    lines = message("\n".join(f"line {i}\n" for i in range(50))).splitlines()
    assert lines[-12:] == [f"    line {i}" for i in range(38, 50)]
