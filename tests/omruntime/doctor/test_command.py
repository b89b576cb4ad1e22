"""The doctor as a subcommand: what it prints and what it exits with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atc_pipeline.cli import main
from omruntime.doctor.command import run_doctor
from tests.omruntime.doctor.machines import BARE, DUO


def test_text_and_exit_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_doctor(False, DUO.build(tmp_path / "duo")) == 0
    assert "0 problem" in capsys.readouterr().out
    assert run_doctor(False, BARE.build(tmp_path / "bare")) == 1
    text = capsys.readouterr().out
    assert text.startswith(
        "problem         Ascend card             this machine has no Ascend card"
    )
    assert "\n" + " " * 40 + "-> to build, lint and compile none is needed" in text


def test_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_doctor(True, DUO.build(tmp_path)) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["fit"] is True
    first = report["findings"][0]
    assert first.keys() == {"id", "title", "status", "found", "remedy", "source"}
    assert first["status"] == "ok"


def test_export_om_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["findings"]
