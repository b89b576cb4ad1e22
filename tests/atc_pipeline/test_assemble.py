from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from atc_pipeline.assemble import Assembled, AssemblySettings, assemble, check_om
from atc_pipeline.atc.jobs import CompileJob, JobSettings, plan_jobs
from atc_pipeline.bundle import is_simulated
from atc_pipeline.draft import read_draft
from atc_pipeline.verify import verify_bundle
from omruntime.errors import BundleError
from omruntime.om_file.attributes import AttrValue
from tests.atc_pipeline.fake_ascend import KV, PROGRAM, SOC
from tests.atc_pipeline.real_om import write_real_om
from tests.atc_pipeline.tiny_step_graph import write_draft

JOBS = plan_jobs(PROGRAM, KV, SOC, JobSettings(share_weights=False))
REAL = AssemblySettings(is_simulated=False)


def assembled(
    folder: Path, attributes: Mapping[str, Mapping[str, AttrValue]], **changes: bool
) -> Assembled:
    """A bundle of OMs as atc makes them; `attributes` are those of a job's OM."""
    write_draft(folder)
    made = {}
    for job in JOBS:
        made[job] = folder / "programs" / job.name
        write_real_om(job, made[job], **attributes.get(job.name, {}))
        (made[job] / "fusion_result.json").write_text("junk")
    settings = AssemblySettings(is_simulated=False, **changes)
    return assemble(folder, read_draft(folder), made, settings)


def test_programs_of_a_real_compiler(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    found = assembled(bundle, {})
    assert not is_simulated(found.manifest)
    assert found.manifest.provenance["tool.cann"] == "8.5.0"
    assert found.warnings == ("no end token",)
    assert sorted(p.name for p in (bundle / "programs").iterdir()) == ["decode.om", "prefill.om"]
    assert "each with its own copy" in found.weights.describe()
    verify_bundle(bundle, progress=lambda stage: None)


def test_operators_on_the_ai_cpu_are_a_warning(tmp_path: Path) -> None:
    on_cpu = {"decode": {"needCheckCpu": ("CumSum", "IsNan")}}
    found = assembled(tmp_path / "bundle", on_cpu)
    wanted = "programs/decode.om runs operators on the AI CPU, which is slow: CumSum, IsNan"
    assert found.warnings[1:] == (wanted,)
    report = json.loads((tmp_path / "bundle" / "reports" / "build.json").read_text())
    assert report["warnings"] == list(found.warnings)
    assert report["programs"][1]["ai_cpu_operators"] == ["CumSum", "IsNan"]


def test_strict_makes_it_an_error(tmp_path: Path) -> None:
    on_cpu = {"decode": {"needCheckTf": ("CumSum",)}}
    with pytest.raises(BundleError, match=r"it runs operators on the AI CPU.*CumSum"):
        assembled(tmp_path / "bundle", on_cpu, is_strict=True)


def test_programs_of_two_compilers_do_not_mix(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"prefill\.om by 8\.5\.0, decode\.om by 9\.1\.0"):
        assembled(tmp_path / "bundle", {"decode": {"atc_version": "9.1.0"}})


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ({"soc_version": "Ascend310B1"}, "it is for Ascend310B1, wanted Ascend310P3"),
        ({"atc_cmdline": "atc.bin --log=error"}, "it was compiled with --framework left out"),
    ],
)
def test_a_program_of_another_kind(
    tmp_path: Path, attributes: Mapping[str, AttrValue], problem: str
) -> None:
    job: CompileJob = JOBS[0]
    write_real_om(job, tmp_path, **attributes)
    with pytest.raises(BundleError, match=problem):
        check_om(job, tmp_path, REAL)


def test_a_real_program_does_not_pass_for_a_simulated_one(tmp_path: Path) -> None:
    write_real_om(JOBS[0], tmp_path)
    check_om(JOBS[0], tmp_path, REAL)
    with pytest.raises(BundleError, match="made by atc, wanted one of the simulator"):
        check_om(JOBS[0], tmp_path, AssemblySettings(is_simulated=True))
