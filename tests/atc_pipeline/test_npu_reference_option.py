"""`export-om verify --reference npu` where there is no card."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from atc_pipeline.cli import main

HAS_TORCH_NPU = importlib.util.find_spec("torch_npu") is not None


@pytest.mark.skipif(HAS_TORCH_NPU, reason="torch-npu is installed here")
def test_without_torch_npu_it_says_so_and_runs_nothing(
    tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["verify", str(tiny_bundle), "--checkpoint", "absent", "--reference", "npu"]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert "--reference npu needs torch-npu" in captured.err
    assert captured.out == ""


def test_it_needs_the_checkpoint(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tiny_bundle), "--reference", "npu"]) == 2
    assert "--checkpoint" in capsys.readouterr().err
