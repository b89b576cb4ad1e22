"""The real `export-om` on a real checkpoint."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from atc_pipeline.bundle import describe_file
from atc_pipeline.cli import main
from demo.processes import ROOT, tool_command
from export.reference import REFERENCE_PATH
from omruntime.manifest import Manifest
from tests.limited_memory import limited_memory

EXPORT_OM = tool_command("atc_pipeline.cli")


def export_om(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*EXPORT_OM, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )


@pytest.mark.parametrize(
    ("stage", "signum"), [(1, signal.SIGINT), (2, signal.SIGTERM), (4, signal.SIGINT)]
)
def test_a_stopped_build_leaves_nothing(
    stage: int, signum: signal.Signals, smollm2_gguf: Path, tmp_path: Path
) -> None:
    """BL-45: Ctrl-C reaches the whole process group; no half bundle, no child, no traceback."""
    command = [*EXPORT_OM, "build", str(smollm2_gguf), "--target", "cpu"]
    command += ["--output", str(tmp_path / "out")]
    with subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as build:
        assert build.stderr is not None
        seen = ""
        while f"[{stage}" not in seen:
            piece = build.stderr.read(1)
            assert piece, f"the build ended early: {seen}"
            seen += piece
        children = psutil.Process(build.pid).children(recursive=True)
        assert children
        os.killpg(build.pid, signum)
        # A bound against hanging, not a measurement.
        assert build.wait(timeout=30) == 128 + signum
        assert "Traceback" not in build.stderr.read()
        assert not [child for child in children if child.is_running()]
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_is_refused_at_once(smollm2_gguf: Path, tmp_path: Path) -> None:
    """BL-11: `ulimit -v` of 2 GiB; need and have are stated, exit code 3."""
    limit = 2 << 30
    arguments = ["build", str(smollm2_gguf), "--target", "cpu", "--output", str(tmp_path / "out")]
    found = subprocess.run(
        limited_memory([*EXPORT_OM, *arguments], limit),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert found.returncode == 3
    assert "too little memory: the build needs about 3,0" in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_verify_replays_the_recorded_answers(
    smollm2_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(smollm2_bundle)]) == 0
    assert "greedy tokens equal to the checkpoint's" in capsys.readouterr().out


def test_verify_finds_another_answer(
    smollm2_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hashes that fit are not enough: the program itself is run."""
    bundle = tmp_path / "bundle"
    shutil.copytree(smollm2_bundle, bundle, copy_function=os.link)
    reference = json.loads((bundle / REFERENCE_PATH).read_text())
    reference["cases"][0]["greedy_ids"][0] += 1
    (bundle / REFERENCE_PATH).unlink()
    (bundle / REFERENCE_PATH).write_text(json.dumps(reference))
    manifest = Manifest.read(bundle)
    files = tuple(describe_file(bundle, entry.path) for entry in manifest.files)
    (bundle / "bundle.json").unlink()
    (bundle / "bundle.json").write_text(dataclasses.replace(manifest, files=files).to_json())
    assert main(["verify", str(bundle)]) == 2
    assert "chose token" in capsys.readouterr().err


def test_inspect_shows_the_model(smollm2_bundle: Path) -> None:
    found = export_om("inspect", smollm2_bundle, "--json")
    model = json.loads(found.stdout)["manifest"]["model"]
    assert (model["num_layers"], model["num_kv_heads"], model["head_dim"]) == (30, 3, 64)
    assert str(ROOT) not in found.stdout
