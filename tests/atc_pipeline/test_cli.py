from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atc_pipeline.build import BuildNeeds, BuildRequest, Exporter
from atc_pipeline.bundle import BuildRecord
from atc_pipeline.cli import main, parse_arguments
from atc_pipeline.commands.build_runs import build_supervised
from atc_pipeline.exit_codes import run_reported
from omruntime.errors import AtcError, BundleError, ConfigError, ExportError, ParityError

ROOT = Path(__file__).parents[2]


def export_om(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-c",
        "import sys;from atc_pipeline.cli import main;sys.exit(main())",
    ]
    return subprocess.run(
        [*command, *arguments],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (BundleError("x"), 2),
        (ExportError("x"), 3),
        (ParityError("x"), 3),
        (AtcError("x"), 4),
        (OSError(5, "x"), 1),
        (ZeroDivisionError("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise error

    assert run_reported(work, show_traceback=False) == code
    assert "Traceback" not in capsys.readouterr().err


def test_an_unexpected_error_hints_at_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        return 1 // 0

    run_reported(work, show_traceback=False)
    brief = capsys.readouterr().err
    assert "unexpected ZeroDivisionError" in brief
    assert "--traceback" in brief
    run_reported(work, show_traceback=True)
    assert "in work" in capsys.readouterr().err


def test_inspect_as_text_and_json(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tiny_bundle)]) == 0
    assert "head_major" in capsys.readouterr().out
    assert main(["inspect", str(tiny_bundle), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["manifest"]["model"]["name"] == "tiny"


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_no_bundle_is_exit_code_2(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path / "absent")]) == 2
    err = capsys.readouterr().err
    assert "cannot read" in err


def test_a_damaged_bundle_is_exit_code_2(
    tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tiny_bundle / "programs" / "step.onnx").unlink()
    assert main(["verify", str(tiny_bundle)]) == 2
    assert "step.onnx: missing" in capsys.readouterr().err


def test_a_target_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["build", "ckpt", "--output", str(tmp_path / "out"), "--target", "gpu"])
    assert caught.value.code == 2
    assert "Ascend310P3" in capsys.readouterr().err


def test_a_value_out_of_range_is_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["build", "ckpt", "--output", str(tmp_path / "out"), "--target", "cpu"]
    assert main([*arguments, "--block-size", "0"]) == 2
    assert "block_size is 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "export-om: the following arguments are required: COMMAND; export-om --help"),
        (["build", "--targ", "cpu"], "--targ; did you mean --target?; export-om build --help"),
        # No near one: --soc is not --atc.
        (["build", "c", "--soc", "x"], "unrecognized arguments: --soc; export-om build --help"),
        (["build", "c", "--target", "x"], "invalid choice: 'x' (choose from 'cpu', 'Ascend310P1'"),
        (["verify"], "required: bundle; export-om verify --help lists all flags"),
        (["inspect", "--js"], "unrecognized arguments: --js; did you mean --json?"),
        (["inspect", "a", "b"], "unrecognized arguments: b; export-om inspect --help"),
    ],
)
def test_usage_errors_are_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(arguments)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_too_little_room_is_refused_before_the_export(tmp_path: Path) -> None:
    def export(folder: Path, progress: object) -> object:
        pytest.fail("the export was started")

    exporter: Exporter = export  # type: ignore[assignment]
    request = BuildRequest(tmp_path / "out", BuildRecord("cpu", "t"), BuildNeeds(1 << 60, 0))
    with pytest.raises(ExportError, match="too little memory"):
        build_supervised(request, exporter, show_traceback=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["bundle/", "./bundle", "../here 模型#1/bundle", "{}"])
def test_any_form_of_a_path(form: str, tmp_path: Path, build_tiny: object) -> None:
    """BL-46: unicode, signs, trailing slash, relative and absolute paths."""
    assert callable(build_tiny)
    here = tmp_path / "here 模型#1"
    here.mkdir()
    build_tiny(here / "bundle")
    found = export_om("inspect", form.format(here / "bundle"), "--json", cwd=here)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["manifest"]["model"]["name"] == "tiny"


def test_a_reader_that_leaves_early_is_no_error(tiny_bundle: Path) -> None:
    code = (
        "import os, sys; from atc_pipeline.cli import main\n"
        "read, write = os.pipe(); os.close(read); os.dup2(write, 1)\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, "inspect", str(tiny_bundle)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, b"")


def test_inspect_needs_no_export_library(tiny_bundle: Path) -> None:
    code = (
        "import sys; from atc_pipeline.cli import main; main(sys.argv[1:])\n"
        "heavy = {'torch', 'transformers', 'onnx', 'onnxruntime'} & sys.modules.keys()\n"
        "sys.exit(', '.join(heavy) or 0)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, "inspect", str(tiny_bundle)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        check=True,
    )
