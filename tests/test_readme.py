"""The README says what the programs say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from omruntime import errors
from server.settings import list_flags
from server.status import status_of

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_settings_table_is_the_one_of_the_program() -> None:
    wanted = [
        f"| `{flag}` | `{env}` | {default} | {text} |" for flag, env, default, text in list_flags()
    ]
    rows = [line for line in README.splitlines() if line.startswith("| `") and "`OMSERVE_" in line]
    assert rows == wanted


def test_the_table_of_errors_is_the_one_of_the_program() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    ours = [status_of(c.__new__(c)) for c in classes if issubclass(c, errors.OmError)]
    wanted = {(status.grpc_code.name, str(status.http_status)) for status in ours}
    assert set(re.findall(r"^\| ([A-Z_]+) \| (\d{3}) \|", README, re.M)) == wanted


@pytest.mark.parametrize("command", ["build", "verify", "inspect"])
def test_every_flag_shown_for_export_om_exists(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from atc_pipeline.cli import main

    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    known = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    shown = {
        flag
        for line in README.splitlines()
        if line.startswith(f"export-om {command} ")
        for flag in re.findall(r"--[a-z][a-z-]+", line)
    }
    assert shown <= known
    assert shown or command != "build"
