"""`export-om verify --reference npu` where there is no card."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from atc_pipeline.cli import main, parse_arguments
from atc_pipeline.commands.verify import run_verify
from tests.atc_pipeline.simulated_build import build_simulated, settings

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


def test_a_bundle_without_its_graph_is_compared_on_the_card_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The parity gate runs the graph, which a build keeps with --keep-onnx; the card does not."""
    build_simulated(tmp_path / "bundle", settings())
    arguments = ["verify", str(tmp_path / "bundle"), "--checkpoint", "absent"]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert "no graph can be compared with --checkpoint; build it with --keep-onnx" in error
    assert "loading" not in error

    options = parse_arguments([*arguments, "--reference", "npu"])
    assert run_verify(options, lambda options, progress: lambda manifest: "seen on the card") == 0
    report = capsys.readouterr().out
    assert "parity: left out" in report
    assert report.endswith("seen on the card\n")
