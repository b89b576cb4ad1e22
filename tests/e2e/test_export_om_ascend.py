"""The real `export-om` on a tiny checkpoint for an Ascend chip, compiled by the simulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atc_pipeline.cli import main
from atc_pipeline.plan.gears_file import PlannedGears
from omruntime.buckets import Bucket, Phase
from omruntime.manifest import Manifest
from tests.export.tiny import save_checkpoint, tiny_model

ROOT = Path(__file__).parents[2]
GEARS = PlannedGears(
    buckets=(
        Bucket(Phase.DECODE, 1, 1, 1),
        Bucket(Phase.DECODE, 2, 1, 2),
        Bucket(Phase.PREFILL, 1, 16, 2),
    ),
    num_blocks=7,
    block_size=64,
)
COMPILE = ("--target", "Ascend310P3", "--atc", "simatc", "--cache-dir", "cache")


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


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint and a bundle of it whose buckets come from a plan."""
    folder = tmp_path_factory.mktemp("ascend")
    save_checkpoint(tiny_model("llama", hidden_size=128), folder / "tiny")
    (folder / "gears.json").write_text(GEARS.to_json())
    limits = ["--max-model-len", "96", "--max-num-seqs", "2", "--num-threads", "1"]
    wanted = ["--output", "bundle", "--buckets", "gears.json", "--keep-onnx", *limits]
    found = export_om(folder, "build", "tiny", *COMPILE, *wanted)
    assert found.returncode == 0, found.stderr
    assert "SIMULATED" in found.stdout
    assert "programs: 2 compiled, 0 from the cache" in found.stdout
    return folder


def test_the_plan_decides_buckets_and_pool(workplace: Path) -> None:
    manifest = Manifest.read(workplace / "bundle")
    steps = {p.path: p.buckets for p in manifest.programs if p.role == "step"}
    assert steps == {
        "programs/prefill.om": GEARS.buckets[2:],
        "programs/decode.om": GEARS.buckets[:2],
    }
    assert (manifest.kv.num_blocks, manifest.kv.block_size) == (7, 64)
    assert manifest.profile == "ascend310p"


def test_the_kept_graph_replays_the_recorded_answers(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(workplace / "bundle"), "--num-threads", "1"]) == 0
    printed = capsys.readouterr().out
    assert "\nreplay: " in printed
    assert "greedy tokens equal" in printed


def test_inspect_shows_the_programs(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(workplace / "bundle"), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["manifest"]["provenance"]["simulated"] == "true"
    assert set(plain["programs"]) == {"programs/prefill.om", "programs/decode.om"}


def test_a_pool_that_the_plan_contradicts_is_refused(workplace: Path) -> None:
    wanted = ["--output", "out", "--buckets", "gears.json", "--num-blocks", "9"]
    found = export_om(workplace, "build", "tiny", *COMPILE, *wanted)
    assert found.returncode == 2
    assert "--num-blocks is 9, the file of --buckets was planned for 7" in found.stderr
