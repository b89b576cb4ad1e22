"""The real `export-om` on a tiny checkpoint, under names that break careless programs.

Builds are processes of their own; what only reads a bundle runs in this one, which has torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atc_pipeline.cli import main
from tests.export.tiny import save_tokenizer, tiny_model

ROOT = Path(__file__).parents[2]
ODD = "modèles 模型/my bundle#1 (v2)%20"


def export_om(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from atc_pipeline.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def build(cwd: Path, checkpoint: str, output: str) -> None:
    limits = ["--max-model-len", "64", "--max-num-seqs", "2", "--num-threads", "1"]
    found = export_om(cwd, "build", checkpoint, "--output", output, "--target", "cpu", *limits)
    assert found.returncode == 0, found.stderr


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints and two bundles of the first, each built from its own folder."""
    folder = tmp_path_factory.mktemp("tiny")
    for name, model_type in (("tiny #1", "llama"), ("other", "qwen3")):
        checkpoint = folder / name
        checkpoint.mkdir()
        tiny_model(model_type).save_pretrained(checkpoint)
        save_tokenizer(checkpoint)
    (folder / "elsewhere").mkdir()
    build(folder, "tiny #1/", f"{ODD}/")
    build(folder / "elsewhere", "../tiny #1", str(folder / "second"))
    return folder


def test_equal_input_gives_equal_bytes(workplace: Path) -> None:
    first, second = workplace / ODD, workplace / "second"
    names = sorted(p.relative_to(first) for p in first.rglob("*") if p.is_file())
    assert names == sorted(p.relative_to(second) for p in second.rglob("*") if p.is_file())
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_a_bundle_names_no_path_of_the_machine(workplace: Path) -> None:
    for path in (workplace / ODD).rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert str(workplace).encode() not in content, path
            assert str(ROOT).encode() not in content, path


def test_verify_with_the_checkpoint_runs_the_whole_gate(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """BL-46: odd signs, relative paths and trailing slashes work for verify and inspect too."""
    monkeypatch.chdir(workplace / "elsewhere")
    assert main(["verify", f"../{ODD}/", "--checkpoint", "../tiny #1"]) == 0
    printed = capsys.readouterr().out
    assert "\nreplay: " in printed
    assert "\nparity: " in printed
    assert main(["inspect", f"../{ODD}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["manifest"]["model"]["max_model_len"] == 64


def test_another_checkpoint_is_refused(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workplace)
    assert main(["verify", "second", "--checkpoint", "other"]) == 2
    assert "built from another checkpoint" in capsys.readouterr().err


def test_a_checkpoint_that_is_not_there(workplace: Path) -> None:
    arguments = ["build", "no/such/folder", "--output", "new", "--target", "cpu"]
    found = export_om(workplace, *arguments)
    assert found.returncode == 2
    assert "Traceback" not in found.stderr
    assert not (workplace / "new").exists()
