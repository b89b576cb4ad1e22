from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from atc_pipeline.atc.jobs import JobSettings, Layout
from atc_pipeline.cli import main
from atc_pipeline.verify import verify_bundle
from omruntime.errors import BundleError
from omruntime.manifest import Manifest
from tests.atc_pipeline.simulated_build import build_simulated, emit, settings, take_compiled

ROOT = Path(__file__).parents[2]


def compile_emitted(folder: Path, *names: str) -> None:
    environ = os.environ | {
        "ATC": f"{sys.executable} -m atc_pipeline.simatc",
        "PYTHONPATH": str(ROOT),
    }
    subprocess.run(
        ["sh", str(folder / "compile.sh"), *names], env=environ, check=True, capture_output=True
    )


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An emitted folder with both programs in it."""
    folder = emit(tmp_path_factory.mktemp("emitted") / "emitted")
    compile_emitted(folder)
    return folder


@pytest.fixture
def copy(compiled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(compiled, tmp_path / "copy"))


def test_the_bundle_is_the_one_of_a_direct_build(compiled: Path, tmp_path: Path) -> None:
    take_compiled(compiled, tmp_path / "taken")
    build_simulated(tmp_path / "direct", settings(None))
    taken, direct = tmp_path / "taken", tmp_path / "direct"
    names = sorted(p.relative_to(taken) for p in taken.rglob("*") if p.is_file())
    assert names == sorted(p.relative_to(direct) for p in direct.rglob("*") if p.is_file())
    for name in names:
        assert (taken / name).read_bytes() == (direct / name).read_bytes(), name
    verify_bundle(taken, progress=lambda stage: None)


def test_any_form_of_a_path(
    compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BL-46: unicode, signs, a trailing slash, relative paths."""
    odd = tmp_path / "modèles 模型" / "emitted#1 (v2)%20"
    shutil.copytree(compiled, odd)
    monkeypatch.chdir(odd)
    arguments = ["--from-compiled", f"../{odd.name}/", "--output", "../my bundle#1/"]
    assert main(["build", *arguments]) == 0
    verify_bundle(odd.with_name("my bundle#1"), progress=lambda stage: None)


def test_the_folder_is_only_read(compiled: Path, tmp_path: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in compiled.rglob("*")}
    take_compiled(compiled, tmp_path / "out")
    assert {p: p.stat().st_mtime_ns for p in compiled.rglob("*")} == before


def test_the_graph_can_be_kept(compiled: Path, tmp_path: Path) -> None:
    take_compiled(compiled, tmp_path / "out", keeps_onnx=True)
    assert (tmp_path / "out" / "programs" / "step.onnx").exists()
    assert Manifest.read(tmp_path / "out").programs[-1].role == "reference"


def test_the_command_line(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert main(["build", "--from-compiled", str(compiled), "--output", str(output)]) == 0
    out = capsys.readouterr().out
    assert "SIMULATED" in out
    assert "bytes shared by 2 programs" in out
    assert Manifest.read(output).provenance["simulated"] == "true"


def test_no_export_library_is_needed(compiled: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from atc_pipeline.cli import main; code = main(sys.argv[1:])\n"
        "heavy = {'torch', 'transformers', 'onnx', 'onnxruntime'} & sys.modules.keys()\n"
        "sys.exit(', '.join(heavy) or code)\n"
    )
    arguments = ["build", "--from-compiled", str(compiled), "--output", str(tmp_path / "out")]
    subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )


def sum_again(folder: Path, name: str) -> None:
    """As if the program had been made so: what is refused then is the program itself."""
    subprocess.run(
        ["sh", "-c", "sha256sum ../../SHA256SUMS *.om weight/* >SHA256SUMS"],
        cwd=folder / "programs" / name,
        check=True,
    )


def refusal(folder: Path, tmp_path: Path) -> str:
    with pytest.raises(BundleError) as caught:
        take_compiled(folder, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    return str(caught.value)


def test_missing_programs_are_listed(copy: Path, tmp_path: Path) -> None:
    shutil.rmtree(copy / "programs" / "decode")
    assert "programs/decode/decode.om: missing; run sh compile.sh decode" in refusal(copy, tmp_path)


def test_emitted_parts_that_changed_are_listed(copy: Path, tmp_path: Path) -> None:
    (copy / "tokenizer" / "tokenizer.json").write_bytes(b"[]")
    (copy / "programs" / "step.weights").unlink()
    text = refusal(copy, tmp_path)
    assert "tokenizer/tokenizer.json: changed since SHA256SUMS was written" in text
    assert "programs/step.weights: missing" in text


def test_swapped_programs_are_refused(copy: Path, tmp_path: Path) -> None:
    programs = copy / "programs"
    shutil.copyfile(programs / "decode" / "decode.om", programs / "prefill" / "prefill.om")
    sum_again(copy, "prefill")
    text = refusal(copy, tmp_path)
    assert "prefill.om is not what was asked for" in text
    assert "lacks the gears" in text


def test_a_simulated_program_does_not_pass_for_a_real_one(tmp_path: Path) -> None:
    """The other way round is refused too, by the label in emit.json."""
    folder = emit(tmp_path / "emitted", is_simulated=False)
    compile_emitted(folder)
    assert "was made by the simulator, wanted one of atc" in refusal(folder, tmp_path)


def test_programs_of_other_buckets_are_refused(copy: Path, tmp_path: Path) -> None:
    other = emit(tmp_path / "other", JobSettings(Layout.UNIFIED))
    compile_emitted(other)
    shutil.copyfile(
        other / "programs" / "step" / "step.om", copy / "programs" / "decode" / "decode.om"
    )
    sum_again(copy, "decode")
    assert "that nobody asked for" in refusal(copy, tmp_path)


@pytest.mark.parametrize("damage", ["cut", "junk", "weight"])
def test_damaged_programs_are_refused(copy: Path, tmp_path: Path, damage: str) -> None:
    path = copy / "programs" / "decode" / "decode.om"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:1000])
    elif damage == "junk":
        path.write_bytes(b"not an OM")
    else:
        for weight in (copy / "programs" / "decode" / "weight").iterdir():
            weight.unlink()
    assert "decode" in refusal(copy, tmp_path)


def test_constants_that_differ_under_one_name_are_refused(copy: Path, tmp_path: Path) -> None:
    weight = next((copy / "programs" / "decode" / "weight").iterdir())
    data = bytearray(weight.read_bytes())
    data[0] ^= 1
    weight.write_bytes(data)
    assert f"{weight.name}: changed since SHA256SUMS was written" in refusal(copy, tmp_path)
    sum_again(copy, "decode")
    assert "for different constants" in refusal(copy, tmp_path)


@pytest.mark.parametrize("name", ["draft.json", "emit.json"])
def test_an_edited_index_is_refused(copy: Path, tmp_path: Path, name: str) -> None:
    """Its facts would go into the bundle's manifest as they are."""
    text = (copy / name).read_text()
    (copy / name).write_text(text.replace("\n", " \n", 1))
    assert f"{name}: changed since SHA256SUMS was written" in refusal(copy, tmp_path)


def test_an_index_that_is_nested_without_end_is_refused(copy: Path, tmp_path: Path) -> None:
    (copy / "emit.json").write_text("[" * 100_000)
    assert "emit.json: maximum recursion depth" in refusal(copy, tmp_path)


def test_a_program_with_a_flipped_byte_is_refused(copy: Path, tmp_path: Path) -> None:
    path = copy / "programs" / "decode" / "decode.om"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert "decode.om: changed since SHA256SUMS was written" in refusal(copy, tmp_path)


def test_the_programs_of_another_emitted_folder_are_refused(copy: Path, tmp_path: Path) -> None:
    """Even of the same shapes: nothing in an OM says which checkpoint its constants are from."""
    (copy / "programs" / "decode" / "SHA256SUMS").write_text(
        (copy / "programs" / "decode" / "SHA256SUMS").read_text().replace("0", "1", 3)
    )
    assert "run sh compile.sh decode" in refusal(copy, tmp_path)


def test_an_unknown_program_is_not_compiled(copy: Path) -> None:
    ran = subprocess.run(
        ["sh", str(copy / "compile.sh"), "decod"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert "there is no program decod, wanted some of: " in ran.stderr
