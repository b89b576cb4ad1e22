from __future__ import annotations

import argparse
import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from atc_pipeline.cli import main
from atc_pipeline.commands import inspect
from atc_pipeline.exit_codes import run_reported
from atc_pipeline.om_inspect.as_json import to_plain
from atc_pipeline.om_inspect.facts import ExternalWeight, OmFacts
from atc_pipeline.om_inspect.gather import read_om_facts
from atc_pipeline.om_inspect.text import describe, printable
from omruntime.errors import BundleError
from omruntime.manifest import MANIFEST_NAME, Manifest
from omruntime.om_file import InoutInfo, OmHeader, PartitionType, TensorDesc, om_bytes
from omruntime.om_file.model_def import Op
from omruntime.om_file.wire import bytes_field
from omruntime.om_file.writer import Partition
from tests.atc_pipeline.made_om import (
    ALL_FORMS,
    ATTRIBUTES,
    GEAR_OPS,
    INFO,
    OUTSIDE,
    TASKS,
    WEIGHTS,
    bundle_om,
    dynamic_om,
    gear_om,
    info_part,
    model_part,
    old_om,
)
from tests.omruntime.om_file.samples import DYNAMIC, OLD, STATIC, sample


def run_inspect(*argv: str) -> int:
    """The subcommand alone, with the exit codes of `export-om`."""
    parser = argparse.ArgumentParser()
    inspect.add_parser(parser.add_subparsers())
    options = parser.parse_args(["inspect", *argv])
    return run_reported(lambda: int(options.command(options)), show_traceback=False)


def lines_of(facts: OmFacts) -> list[str]:
    return [" ".join(line.split()) for line in describe(facts, "x.om").splitlines()]


def test_the_text_answers_the_questions() -> None:
    lines = lines_of(read_om_facts(gear_om()))
    for wanted in (
        "OM file x.om",
        "header 0x20000000 (new)",
        "kind IR_MODEL",
        "shapes known (one, or gears)",
        "memory_size 4,096 bytes",
        "weight_size 640 bytes",
        "soc_version Ascend310P3",
        "atc_version 7.0.0",
        "atc_cmdline atc.bin --model=a.onnx",
        "ids int32 [-1, -1] ND, 64 bytes",
        "ascend_mbatch_shape_data int32 [2] ND, 8 bytes",
        "head:0:logits float32 [-1, 9] ND, 72 bytes",
        "gears (dims)",
        "input order ids",
        "gear 0 [1, 4] -> [1, 9]",
        "gear 1 [2, 8] -> [2, 9]",
        "WEIGHTS_DATA 640 bytes",
        "operators (6 in 2 graphs)",
        "Data 2",
        "BatchMatMulV2 1",
    ):
        assert wanted in lines


def test_an_old_file_tells_by_its_operators() -> None:
    (model,) = read_om_facts(old_om()).models
    assert [(t.name, t.dims) for t in model.inputs] == [
        ("ids", (2, 8)),
        ("ascend_mbatch_shape_data", (2,)),
    ]
    assert [(t.name, t.dtype) for t in model.outputs] == [("head:0:logits", "float32")]
    assert model.gears is not None
    assert (model.gears.kind, model.gears.values) == ("dims", ((1, 4), (2, 8)))
    assert model.gears.input_order == ("ids",)


def test_output_names_come_from_the_producer_where_their_count_does_not_fit() -> None:
    attributes = ATTRIBUTES | {"attr_model_out_nodes_name": ("a", "b")}
    data = om_bytes(OmHeader("step"), [[model_part(GEAR_OPS, attributes)]])
    (model,) = read_om_facts(data).models
    assert [t.name for t in model.outputs] == ["output_0_shape_case_0"]


def test_several_models_share_the_first_dictionary() -> None:
    root, first, second = read_om_facts(dynamic_om()).models
    assert (root.name, first.name, second.name) == ("root", "sub_1", "sub_2")
    assert first.graph is not None
    assert first.graph.external_weights == (ExternalWeight("weight_cd", 8, 4),)
    assert second.attribute("memory_size") == "2"


def test_a_bundle_shows_its_files() -> None:
    facts = read_om_facts(bundle_om())
    assert facts.models == ()
    assert [f.header.is_old for f in facts.sub_files] == [False, True]
    assert "OM file 1 of the bundle x.om" in lines_of(facts)


def test_weights_in_other_files_are_listed_and_warned_of() -> None:
    facts = read_om_facts(om_bytes(OmHeader("s"), [[model_part(OUTSIDE)]]))
    lines = lines_of(facts)
    assert "weight_ab 128 bytes" in lines
    assert "- weights lie in files beside the OM; keep them together" in lines


def test_operators_of_the_ai_cpu_are_warned_of() -> None:
    attributes = ATTRIBUTES | {"needCheckCpu": ("ScatterElements", "IsNan"), "needCheckTf": ("X",)}
    facts = read_om_facts(om_bytes(OmHeader("s"), [[model_part((), attributes)]]))
    assert "operators left the AI Core for the AI CPU: ScatterElements IsNan" in facts.warnings
    assert "operators left the AI Core for the TensorFlow AI CPU: X" in facts.warnings


def test_a_plain_file_has_no_warnings() -> None:
    assert read_om_facts(gear_om()).warnings == ()


def patched(data: bytes, offset: int, layout: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into("<" + layout, changed, offset, value)
    return bytes(changed)


@pytest.mark.parametrize(
    ("data", "warning"),
    [
        (patched(gear_om(), 80, "B", 1), "the payload is encrypted"),
        (patched(gear_om(), 256 + 8 + 24 + 8, "Q", 3), "offsets disagree with its sizes"),
        (patched(gear_om(), 256 + 8 + 24 * 3, "I", 99), "unknown types [99] were skipped"),
        (
            patched(gear_om() + b"123", 184, "Q", len(gear_om()) + 3 - 256),
            "3 bytes follow the last partition",
        ),
        (om_bytes(OmHeader("s"), [[model_part(())]]), "only a graph"),
        (om_bytes(OmHeader("simatc_s"), [[info_part(), model_part(())]]), "made by simatc"),
    ],
)
def test_what_is_odd_is_warned_of(data: bytes, warning: str) -> None:
    assert warning in "; ".join(read_om_facts(data).warnings)


def test_the_json_holds_the_facts() -> None:
    plain = json.loads(json.dumps(to_plain(read_om_facts(gear_om()))))
    (model,) = plain["models"]
    assert plain["header"]["name"] == "step"
    assert model["attributes"]["om_info_list"] == [640, 0, 0, 16, 0]
    assert model["gears"]["input_shapes"][1] == {"ids": [2, 8]}
    assert model["partitions"][0] == ["MODEL_INOUT_INFO", len(info_part().chunks[0])]


def test_texts_of_the_file_cannot_write_to_the_terminal() -> None:
    name = "a\x1b[2Jb\n\x9bc"
    facts = read_om_facts(om_bytes(OmHeader("s"), [[model_part((), name=name)]]))
    assert "\x1b" not in describe(facts, "x.om")
    assert printable(name) == "a\\x1b[2Jb\\n\\x9bc"
    assert printable("x" * 5000).endswith("... (5,000 characters)")


def test_many_kinds_of_operators_are_summed_up() -> None:
    ops = tuple(Op(f"o{i}", f"Type{i:02}") for i in range(20))
    lines = lines_of(read_om_facts(om_bytes(OmHeader("s"), [[model_part(ops)]])))
    assert "5 other types 5" in lines


def test_damage_inside_of_a_partition_names_the_offset_in_the_file() -> None:
    bad = Partition(PartitionType.MODEL_DEF, (b"\x0a\x7fshort",))
    with pytest.raises(BundleError, match="MODEL_DEF, offset 288: got 5 bytes, wanted 127"):
        read_om_facts(om_bytes(OmHeader("s"), [[bad]]))


def test_a_gear_that_does_not_fit_is_an_error() -> None:
    info = replace(INFO, dim_gears=((1,), (2,)))
    with pytest.raises(BundleError, match="the inputs leave 2"):
        read_om_facts(om_bytes(OmHeader("s"), [[info_part(info)]]))


@pytest.mark.parametrize("form", ALL_FORMS)
def test_the_command_shows_every_form(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.om"
    path.write_bytes(ALL_FORMS[form]())
    assert run_inspect(str(path)) == 0
    assert f"OM file {path}" in capsys.readouterr().out
    assert run_inspect("--json", str(path)) == 0
    assert json.loads(capsys.readouterr().out)["size_bytes"] == path.stat().st_size


@pytest.fixture
def bundle_with_om(tiny_bundle: Path) -> Path:
    """The tiny bundle, whose program is an OM now."""
    manifest = Manifest.read(tiny_bundle)
    program = replace(manifest.programs[0], path="programs/step.om")
    (tiny_bundle / program.path).write_bytes(gear_om())
    text = replace(manifest, programs=(program,)).to_json()
    (tiny_bundle / MANIFEST_NAME).write_text(text, encoding="utf-8")
    return tiny_bundle


def test_a_bundle_shows_the_facts_of_its_oms(
    bundle_with_om: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_inspect(str(bundle_with_om)) == 0
    text = capsys.readouterr().out
    assert "OM file programs/step.om" in text
    assert "KV cache" in text
    assert run_inspect("--json", str(bundle_with_om)) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["programs"]["programs/step.om"]["header"]["name"] == "step"
    assert plain["manifest"]["model"]["name"] == "tiny"


def test_a_damaged_om_of_a_bundle_is_named(
    bundle_with_om: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bundle_with_om / "programs" / "step.om").write_bytes(b"IMOD")
    assert run_inspect(str(bundle_with_om)) == 2
    assert "step.om: header, offset 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gear_om()[:300], "cut short"),
        (b"", "got 0 bytes, wanted 256"),
        (b"PK\x03\x04" + bytes(300), "OM2 package"),
        (b"\x08\x07" * 200, "this is no OM file"),
    ],
)
def test_the_command_refuses_damage_with_exit_code_2(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.om"
    path.write_bytes(content)
    assert run_inspect(str(path)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert str(path) in error
    assert "Traceback" not in error


def test_inspect_and_lint_point_to_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx, om = tmp_path / "step.onnx", tmp_path / "step.om"
    om.write_bytes(gear_om())
    assert run_inspect(str(onnx)) == 2
    assert "export-om lint checks ONNX files" in capsys.readouterr().err
    assert main(["lint", str(om)]) == 2
    assert "export-om inspect shows what is in an OM" in capsys.readouterr().err


def test_the_real_old_file() -> None:
    lines = lines_of(read_om_facts(sample(OLD)))
    for wanted in (
        "header 0x10000000 (old)",
        "platform 1.11.z.0 type 1",
        "memory_size 90,624 bytes",
        "weight_size 320,000 bytes",
        "atc_version 1.75.22.0.220",
        "s float32 [1, 42, 42, 1] NHWC, 7,056 bytes",
        "out_a:0 int32 [1] NHWC, 64 bytes",
        "operators (25 in 1 graphs)",
    ):
        assert wanted in lines


def test_the_real_static_file() -> None:
    """The flat description and the operators agree on int32, which they number differently."""
    (model,) = read_om_facts(sample(STATIC)).models
    assert model.graph is not None
    assert [t.dtype for t in model.inputs] == [t.dtype for t in model.graph.inputs] == ["int32"]
    assert [t.name for t in model.outputs] == [t.name for t in model.graph.outputs]


def test_the_real_dynamic_file() -> None:
    facts = read_om_facts(sample(DYNAMIC))
    assert [model.name for model in facts.models] == ["root", "sub_1", "sub_2"]
    assert facts.models[1].attribute("memory_size") == "10240"
    assert facts.models[0].graph is not None
    assert facts.models[0].graph.num_graphs == 3


def test_a_file_larger_than_memory_is_shown_without_reading_its_weights(tmp_path: Path) -> None:
    """A sparse file: only the tables and descriptions are there."""
    path, size = tmp_path / "x.om", 64 << 30
    small = gear_om()
    front = small[: -len(TASKS.chunks[0]) - len(WEIGHTS.chunks[0])]
    front = patched(front, 256 + 8 + 24 * 2 + 16, "Q", size)
    with path.open("wb") as file:
        file.write(patched(front, 184, "Q", len(front) + size + 16 - 256))
        file.truncate(len(front) + size + 16)
    (model,) = read_om_facts(path).models
    assert ("WEIGHTS_DATA", size) in model.partitions


def test_operators_of_too_many_kinds_are_refused() -> None:
    ops = b"".join(bytes_field(6, bytes_field(2, str(number))) for number in range(100_002))
    part = Partition(PartitionType.MODEL_DEF, (bytes_field(7, ops),))
    with pytest.raises(BundleError, match="got more than 100000 kinds of operators"):
        read_om_facts(om_bytes(OmHeader("s"), [[part]]))


def test_gears_that_would_fill_the_memory_are_refused() -> None:
    texts = tuple(f"t{i}" for i in range(2000))
    inputs = tuple(TensorDesc(text, 1, (1,), 4) for text in texts)
    info = InoutInfo(inputs=inputs, input_order=texts, dim_gears=((),) * 2000)
    data = om_bytes(OmHeader("m"), [[info_part(info)]])
    with pytest.raises(BundleError, match="got 2000 gears of 4000 tensors"):
        read_om_facts(data)
