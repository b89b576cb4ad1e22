"""`om-serve` as a command, and what both commands may import."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.cli import main
from server.terminal.cli import main as client_main
from server.version import omserve_version

ROOT = Path(__file__).parents[2]
root = logging.getLogger()
HEAVY = ("torch", "transformers", "onnx", "onnxruntime", "acl")


@pytest.fixture(autouse=True)
def _as_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings from outside; the command may change signal handlers and logging."""
    for name in list(os.environ):
        if name.startswith("OMSERVE_"):
            monkeypatch.delenv(name)
    handler, handlers, level = signal.getsignal(signal.SIGINT), root.handlers[:], root.level
    yield
    signal.signal(signal.SIGINT, handler)
    root.handlers, root.level = handlers, level


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("server.app", HEAVY),
        ("server.generate", HEAVY),
        ("server.terminal.cli", (*HEAVY, "numpy", "tokenizers", "jinja2")),
        ("server.client", (*HEAVY, "numpy", "tokenizers", "jinja2")),
        # Light until it handles signals: Ctrl-C in the middle of an import is ugly.
        ("server.cli", (*HEAVY, "numpy", "grpc", "asyncio")),
    ],
)
def test_imports_stay_light(module: str, forbidden: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*[m for m in {forbidden} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "no bundle"),
        (["b", "--grpc-port", "x"], "--grpc-port"),
        (["b", "--host", "0.0.0.0"], "--allow-insecure-listen"),
        (["no/such/bundle"], "no/such/bundle"),
        (["no/such/bundle", "--device", "tpu"], "device is 'tpu', wanted one of: cpu"),
        (["b", "--inject-fault", "kill@1"], "needs --allow-faults"),
        (["b", "--step-timeout-s", "0"], "step_timeout_s is 0"),
        (["b", "--step-timeout-s", "nan"], "step_timeout_s is nan"),
        (["b", "--load-timeout-s", "0"], "load_timeout_s is 0"),
    ],
)
def test_a_wrong_setting_or_bundle_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("om-serve: ")
    assert error.count("\n") == 1
    assert words in error


def test_doctor_is_a_subcommand_and_a_bundle_of_that_name_can_be_served(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--json"]) in (0, 1)
    assert '"findings"' in capsys.readouterr().out
    assert main(["./doctor"]) == 2
    assert "doctor" in capsys.readouterr().err


@pytest.mark.parametrize("command", [main, client_main])
def test_both_commands_tell_their_version(
    command: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"omserve {omserve_version()}\n")
