"""Real builds with simatc in real processes."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from atc_pipeline.atc.jobs import JobSettings, Layout
from atc_pipeline.bundle_inspect import describe_as_text, summarise
from atc_pipeline.om_facts import read_program_facts
from atc_pipeline.verify import verify_bundle
from omruntime.errors import AtcError, BundleError, ConfigError
from omruntime.manifest import Manifest
from tests.atc_pipeline.fake_ascend import BUCKETS, SOC, Notes, fake_tool
from tests.atc_pipeline.simulated_build import build_simulated, settings


def files(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def bundle(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose two programs were compiled and are in `cache`."""
    output = tmp_path_factory.mktemp("built") / "bundle"
    compiled = build_simulated(output, settings(cache))
    assert (compiled.num_compiled, compiled.num_cached) == (2, 0)
    return output


def test_what_a_bundle_holds(bundle: Path) -> None:
    names = sorted(files(bundle))
    weights = [name for name in names if name.startswith("programs/weight/weight_")]
    assert weights
    assert [name for name in names if name not in weights] == [
        "bundle.json",
        "programs/decode.om",
        "programs/prefill.om",
        "reports/build.json",
        "reports/parity.json",
        "tokenizer/tokenizer.json",
    ]
    verify_bundle(bundle, progress=lambda stage: None)


def test_what_the_manifest_says(bundle: Path) -> None:
    manifest = Manifest.read(bundle)
    assert (manifest.soc, manifest.profile) == (SOC, "ascend310p")
    assert [p.path for p in manifest.programs] == ["programs/prefill.om", "programs/decode.om"]
    assert set(manifest.bucket_table()) == set(BUCKETS)
    assert manifest.kv.num_blocks == 9
    assert manifest.provenance["simulated"] == "true"
    assert "simatc" in manifest.provenance["tool.cann"]
    assert "--num-blocks 9" in manifest.provenance["argv"]
    assert "SIMULATED" in summarise(manifest)
    assert describe_as_text(manifest, ()).startswith("SIMULATED: no card")


def test_the_report_says_what_sharing_saves(bundle: Path) -> None:
    report = json.loads((bundle / "reports" / "build.json").read_text())
    assert [program["num_gears"] for program in report["programs"]] == [3, 2]
    weights = report["weights"]
    assert weights["shared_files"]
    assert weights["saved_bytes"] == weights["stored_bytes"] > 60_000
    assert weights["duplicate_bytes"] == 0


def test_the_second_build_compiles_nothing_and_is_the_same(
    bundle: Path, cache: Path, tmp_path: Path
) -> None:
    notes = Notes()
    compiled = build_simulated(tmp_path / "again", settings(cache), notes=notes)
    assert (compiled.num_compiled, compiled.num_cached) == (0, 2)
    assert files(tmp_path / "again") == files(bundle)
    assert "decode.om: compiled before, taken from the cache" in notes.lines


def test_another_tokenizer_recompiles_nothing(bundle: Path, cache: Path, tmp_path: Path) -> None:
    compiled = build_simulated(tmp_path / "other", settings(cache), tokenizer=b'{"a": 1}')
    assert compiled.num_compiled == 0
    before, after = Manifest.read(bundle), Manifest.read(tmp_path / "other")
    assert before.programs == after.programs
    assert before.kv_identity == after.kv_identity
    assert before.digest() != after.digest()


@pytest.mark.parametrize("name", ["plain", "modèles 模型/my bundle#1 (v2)%20"])
def test_a_build_without_the_cache_gives_the_same_bytes(
    bundle: Path, tmp_path: Path, name: str
) -> None:
    """BL-46: also below a path that atc would refuse."""
    assert build_simulated(tmp_path / name, settings(None)).num_compiled == 2
    assert files(tmp_path / name) == files(bundle)


def test_another_flag_compiles_again(bundle: Path, cache: Path, tmp_path: Path) -> None:
    jobs = JobSettings(extra_flags=(("deterministic", "1"),))
    assert build_simulated(tmp_path / "out", settings(cache, jobs=jobs)).num_compiled == 2


@pytest.mark.parametrize(
    ("layout", "names", "shared"),
    [
        (Layout.UNIFIED, ["step"], False),
        (
            Layout.STATIC,
            [
                "decode_b1_t1_p4",
                "decode_b2_t1_p4",
                "prefill_b1_t8_p1",
                "prefill_b1_t16_p4",
                "prefill_b1_t32_p4",
            ],
            True,
        ),
    ],
)
def test_layouts(
    cache: Path, tmp_path: Path, layout: Layout, names: list[str], shared: bool
) -> None:
    compiled = build_simulated(tmp_path / "out", settings(cache, jobs=JobSettings(layout)))
    manifest = compiled.assembled.manifest
    assert [Path(p.path).stem for p in manifest.programs] == names
    assert (tmp_path / "out" / "programs" / "weight").exists() is shared
    verify_bundle(tmp_path / "out", progress=lambda stage: None)


def test_separate_weights(cache: Path, tmp_path: Path) -> None:
    jobs = JobSettings(share_weights=False)
    compiled = build_simulated(tmp_path / "out", settings(cache, jobs=jobs))
    assert not (tmp_path / "out" / "programs" / "weight").exists()
    assert "each with its own copy" in compiled.assembled.weights.describe()


def test_the_graph_can_be_kept(bundle: Path, cache: Path, tmp_path: Path) -> None:
    compiled = build_simulated(tmp_path / "out", settings(cache, keeps_onnx=True))
    manifest = compiled.assembled.manifest
    assert manifest.programs[-1].role == "reference"
    assert set(manifest.bucket_table()) == set(BUCKETS)
    assert (tmp_path / "out" / "programs" / "step.weights").stat().st_size > 60_000
    assert Manifest.read(bundle).programs == manifest.programs[:-1]
    verify_bundle(tmp_path / "out", progress=lambda stage: None)


def test_intermediates_are_kept_on_demand(tmp_path: Path) -> None:
    build_simulated(tmp_path / "out", settings(None, keeps_intermediates=True))
    kept = tmp_path / "out.atc"
    assert (kept / "step.onnx").exists()
    assert (kept / "decode" / "decode.om").exists()
    assert "ATC" in (kept / "decode" / "atc.log").read_text()


def test_a_program_that_is_not_what_was_asked_for_ends_the_build(
    bundle: Path, cache: Path, tmp_path: Path
) -> None:
    """A compiler that answers with another OM; the bad one is not remembered."""
    decode = bundle / "programs" / "decode.om"
    weight = bundle / "programs" / "weight"
    tool = fake_tool(tmp_path, f"cp {decode} $output.om; cp -r {weight} weight")
    with pytest.raises(AtcError) as caught:
        build_simulated(tmp_path / "out", settings(tmp_path / "cache", tool=tool, num_jobs=1))
    text = str(caught.value)
    assert "it was made by the simulator, wanted one of atc" in text
    assert "it lacks the gears 1,8,1,8,1,1,1,1" in text
    assert "it was compiled with --output 'decode', wanted 'prefill'" in text
    assert not list((tmp_path / "cache" / "entries").iterdir())
    assert not (tmp_path / "out").exists()


def test_no_om_at_all_ends_the_build(tmp_path: Path) -> None:
    tool = fake_tool(tmp_path, "echo junk >$output.om")
    with pytest.raises(AtcError, match=r"unusable program: .*\.om: header"):
        build_simulated(tmp_path / "out", settings(None, tool=tool))


def test_a_failed_run_keeps_its_log(tmp_path: Path) -> None:
    body = "mkdir -p plog; echo detail >plog/plog-1.log; echo E10035: one gear; exit 255"
    build = settings(None, tool=fake_tool(tmp_path, body), num_jobs=1)
    with pytest.raises(AtcError, match="E10035: fewer than 2 gears"):
        build_simulated(tmp_path / "out", build)
    kept = tmp_path / "out.atc" / "prefill"
    assert (kept / "atc.log").read_text() == "E10035: one gear\n"
    assert (kept / "plog" / "plog-1.log").exists()


def test_no_path_for_atc_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "odd #1"
    odd.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(odd))
    with pytest.raises(ConfigError, match="atc takes paths of letters"):
        build_simulated(odd / "out", settings(None))


def test_a_manifest_that_differs_from_its_programs_does_not_verify(
    bundle: Path, tmp_path: Path
) -> None:
    """Gears, chip and label: the OM says its own."""
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    manifest = Manifest.read(copy)
    prefill, decode = manifest.programs
    wrong = dataclasses.replace(decode, buckets=prefill.buckets)
    provenance = {k: v for k, v in manifest.provenance.items() if k != "simulated"}
    changed = dataclasses.replace(
        manifest, programs=(prefill, wrong), soc="Ascend310P1", provenance=provenance
    )
    (copy / "bundle.json").write_text(changed.to_json())
    with pytest.raises(BundleError) as caught:
        verify_bundle(copy, progress=lambda stage: None)
    text = str(caught.value)
    assert "programs/decode.om: it lacks the gears" in text
    assert "programs/prefill.om: it is for Ascend310P3, wanted Ascend310P1" in text
    assert "differ in whether it is simulated" in text


def test_a_missing_weight_file_does_not_verify(bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    for path in (copy / "programs" / "weight").iterdir():
        path.unlink()
    with pytest.raises(BundleError, match=r"decode\.om: it wants \d+ bytes of weight_"):
        verify_bundle(copy, progress=lambda stage: None)


def test_the_om_names_no_folder_of_this_machine(bundle: Path, tmp_path: Path) -> None:
    facts = read_program_facts(bundle / "programs" / "decode.om")
    assert "--model=../step.onnx --output=decode" in facts.atc_cmdline
    for name, content in files(bundle).items():
        assert str(bundle.parent).encode() not in content, name


def test_what_a_killed_build_left_in_the_temporary_folder_is_removed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    (temporary / "omserve-atc-dead" / "decode").mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    build_simulated(tmp_path / "odd #1" / "out", settings(cache))
    assert list(temporary.iterdir()) == []


def test_a_disk_that_fills_up_is_named(small_disk: Path, tmp_path: Path) -> None:
    """BL-11: whether atc or the build itself meets the end, and nothing stays but room."""
    tool = fake_tool(tmp_path, "head -c 4000000 /dev/zero >$output.om")
    with pytest.raises(AtcError, match="do: the disk is full"):
        build_simulated(small_disk / "out", settings(None, tool=tool))
    assert [p.name for p in small_disk.iterdir() if p.name != "out.atc"] == []
