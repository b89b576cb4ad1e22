"""Which file is linted, and what the report says."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_pipeline.atc.jobs import JobSettings
from atc_pipeline.cli import main
from atc_pipeline.emit import write_emitted
from atc_pipeline.lint.check import ALL_RULES, lint_model
from atc_pipeline.lint.report import Severity
from atc_pipeline.lint.source import find_source
from omruntime.errors import ConfigError, ExportError
from omruntime.manifest import Manifest
from tests.atc_pipeline.lint.graphs import found, model, node, save
from tests.atc_pipeline.tiny_step_graph import write_draft


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    path = tmp_path / "clean" / "step.onnx"
    path.parent.mkdir()
    save(model([]), path)
    return path


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """One error and one warning."""
    path = tmp_path / "faulty.onnx"
    save(model([node("IsNaN", ["rows"], ["nans"]), node("Gelu", ["rows"], ["y"])]), path)
    return path


def test_rules_are_documented_and_named_once() -> None:
    seen: dict[tuple[str, frozenset[str]], int] = {}
    for rule in ALL_RULES:
        assert rule.remedy
        assert rule.source
        key = (rule.rule_id, rule.profiles)
        seen[key] = seen.get(key, 0) + 1
    assert set(seen.values()) == {1}


def test_a_clean_graph_has_no_finding(clean: Path) -> None:
    for path in (clean, clean.parent):
        report = lint_model(path, "Ascend310P3")
        assert report.findings == ()
        report.require_clean(strict=True)
        assert "4 nodes for Ascend310P3: 0 errors, 0 warnings" in report.to_text()


def test_errors_come_first_and_end_a_build(faulty: Path) -> None:
    report = lint_model(faulty, "Ascend310P3")
    assert [f.severity for f in report.findings] == [Severity.ERROR, Severity.WARNING]
    with pytest.raises(ExportError, match=r"n_y \(Gelu\): no plugin.*\n.*do: .*\n.*Source: ") as e:
        report.require_clean()
    assert "IsNaN" not in str(e.value)
    with pytest.raises(ExportError, match=r"n_nans \(IsNaN\)"):
        report.require_clean(strict=True)


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot read"), (b"", "no graph"), (b"not protobuf at all", "not an ONNX model")],
)
def test_files_that_are_no_models(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "x.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        lint_model(path, "Ascend310P3")


def test_an_emitted_folder_brings_its_chip_and_the_buckets_of_each_program(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "emitted"
    draft = write_draft(folder)
    write_emitted(folder, JobSettings(), is_simulated=False)
    source = find_source(folder)
    assert (source.graph, source.soc) == (folder / "programs" / "step.onnx", draft.soc)
    assert source.gears is not None
    assert {name for name, _ in source.gears.programs} == {
        "programs/prefill.om",
        "programs/decode.om",
    }
    assert source.gears.num_blocks == draft.kv.num_blocks
    report = lint_model(folder)
    assert (report.target, report.findings) == (draft.soc, ())


def test_folders_without_or_with_several_graphs(tmp_path: Path, clean: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match="no ONNX file"):
        lint_model(tmp_path / "none", "Ascend310P3")
    (clean.parent / "second.onnx").write_bytes(clean.read_bytes())
    with pytest.raises(ConfigError, match=r"several ONNX files \(second.onnx, step.onnx\)"):
        lint_model(clean.parent, "Ascend310P3")


def test_unknown_target(clean: Path) -> None:
    with pytest.raises(ConfigError, match=r"'Ascend910'.*Ascend310P3"):
        lint_model(clean, "Ascend910")


def test_exit_codes(clean: Path, faulty: Path, tmp_path: Path) -> None:
    warned = tmp_path / "warned.onnx"
    save(model([node("IsNaN", ["rows"], ["y"])]), warned)
    assert main(["lint", str(clean)]) == 0
    assert main(["lint", str(faulty)]) == 3
    assert main(["lint", str(warned)]) == 0
    assert main(["lint", str(warned), "--strict"]) == 3
    assert main(["lint", str(warned), "--strict", "--target", "Ascend310B4"]) == 3
    assert main(["lint", str(tmp_path / "absent.onnx")]) == 2
    assert main(["lint", str(clean), "--target", "cpu"]) == 2


def test_buckets_come_from_a_plan(clean: Path, tmp_path: Path) -> None:
    bucket = {"phase": "decode", "tokens": 1, "past_blocks": 1}
    buckets = [bucket | {"batch": batch} for batch in range(1, 102)]
    gears = tmp_path / "gears.json"
    gears.write_text(json.dumps({"buckets": buckets, "block_size": 128, "num_blocks": 9}))
    assert main(["lint", str(clean), "--buckets", str(gears)]) == 3


def test_json_has_every_finding(faulty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", str(faulty), "--json"]) == 3
    plain = json.loads(capsys.readouterr().out)
    assert (plain["num_errors"], plain["num_warnings"], plain["num_nodes"]) == (1, 1, 6)
    first = plain["findings"][0]
    assert first["rule"] == "unregistered-operator"
    assert first["severity"] == "error"
    assert (first["node"], first["op_type"]) == ("n_y", "Gelu")
    assert first["reason"]
    assert first["remedy"]
    assert first["source"]


def test_a_bundle_brings_its_own_buckets(tiny_bundle: Path) -> None:
    """Kernels of ONNX Runtime have no plugin."""
    fused = node("FusedMatMul", ["rows", "head"], ["y"], domain="com.microsoft")
    graph = model([fused], opsets={"": 18, "npu": 1, "com.microsoft": 1})
    save(graph, tiny_bundle / "programs" / "step.onnx")
    assert found(lint_model(tiny_bundle, "Ascend310P3")) == {("unregistered-operator", "n_y")}
    manifest = Manifest.read(tiny_bundle)
    program = manifest.programs[0]
    twice = replace(program, buckets=(*program.buckets, program.buckets[0]))
    text = replace(manifest, programs=(twice,)).to_json()
    (tiny_bundle / "bundle.json").write_text(text)
    assert ("equal-gears", program.path) in found(lint_model(tiny_bundle, "Ascend310P3"))


@settings(max_examples=150)
@given(st.data())
def test_damaged_models_are_refused_or_judged(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(model([node("Neg", ["rows"], ["y"])]).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "step.onnx"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with contextlib.suppress(ConfigError):
        lint_model(path, "Ascend310P3").to_json()
