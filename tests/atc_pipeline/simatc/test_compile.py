"""What a simulated OM says, and that it computes what the ONNX file does."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper

from atc_pipeline.om_inspect.facts import OmFacts
from atc_pipeline.om_inspect.gather import read_om_facts
from export.npu_functions import expand_npu_ops
from omruntime.om_file import (
    GEAR_INPUT,
    PartitionType,
    gear_input_shapes,
    gear_output_shapes,
    parse_inout_info,
    read_om,
)
from omruntime.om_file.model_def import read_model_def
from omruntime.om_file.simulated import SimulatedProgram
from tests.atc_pipeline.simatc.graphs import (
    GAMMA,
    HALF,
    HEAD,
    TABLE,
    Flags,
    make_model,
    one_node,
    save,
    step_model,
    value,
)

STATIC = {"input_shape": "ids:2,8;scale:1", "dynamic_dims": None}


def compiled(flags: Flags, **changes: str | None) -> Path:
    assert flags.run(**changes) == 0
    return flags.folder / "out.om"


def facts_of(flags: Flags, **changes: str | None) -> OmFacts:
    return read_om_facts(compiled(flags, **changes))


def run_om(path: Path, inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """The program in plain ONNX Runtime, its constants by name."""
    program = SimulatedProgram.read(read_om(path))
    arrays = {
        w.name: w.array(
            memoryview((path.parent / w.file).read_bytes()) if w.file else program.constants
        )
        for w in program.weights
    }
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    values = [ort.OrtValue.ortvalue_from_numpy(array) for array in arrays.values()]
    options.add_external_initializers(list(arrays), values)
    session = ort.InferenceSession(bytes(program.model), options)
    return list(session.run(None, inputs))


def expected(ids: NDArray[Any], scale: float) -> list[NDArray[Any]]:
    """The step model in NumPy, in float32 inside."""
    embedded = TABLE[ids].astype(np.float32)
    rstd = 1 / np.sqrt(np.mean(embedded**2, -1, keepdims=True) + 1e-6)
    normed = (embedded * rstd * GAMMA.astype(np.float32)).astype(np.float16)
    scores = (normed.astype(np.float32) @ HEAD.T.astype(np.float32)).astype(np.float16)
    return [scores * np.float16(scale), normed.reshape(-1, 64)]


@pytest.mark.parametrize("external_weight", ["0", "1", "2"])
@pytest.mark.parametrize("shape", [(1, 4), (2, 8)])
def test_the_program_computes_what_the_model_says(
    flags: Flags, external_weight: str, shape: tuple[int, int]
) -> None:
    path = compiled(flags, external_weight=external_weight)
    ids = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
    got = run_om(path, {"ids": ids, "scale": np.array([0.5], np.float16)})
    for ours, wanted in zip(got, expected(ids, 0.5), strict=True):
        assert ours.dtype == wanted.dtype
        np.testing.assert_allclose(ours, wanted, rtol=2e-3, atol=2e-2)


def test_constants_inside_of_the_onnx_file_count_as_well(tmp_path: Path) -> None:
    save(step_model(), tmp_path, are_weights_outside=False)
    program = SimulatedProgram.read(read_om(compiled(Flags(tmp_path))))
    assert {w.name for w in program.weights} == {"table", "head"}
    assert len(program.model) < 4000


def test_gears_are_described_as_atc_does(flags: Flags) -> None:
    path = compiled(flags)
    info = parse_inout_info(read_om(path).blocks[0].partitions[PartitionType.MODEL_INOUT_INFO])
    assert [t.name for t in info.inputs] == ["ids", "scale", GEAR_INPUT]
    assert [str(t) for t in info.inputs] == ["int32 [-1, -1] ND", "float16 [1] ND", "int32 [2] ND"]
    assert [t.name for t in info.outputs] == ["scaled:0:y", "rows:0:rows"]
    assert info.dim_gears == ((1, 4), (2, 8))
    assert info.input_order == ("ids", "scale")
    assert gear_input_shapes(info, (2, 8)) == {"ids": (2, 8), "scale": (1,)}
    assert gear_output_shapes(info, 0) == ((1, 4, 40), (4, 64))
    assert gear_output_shapes(info, 1) == ((2, 8, 40), (16, 64))
    # Buffers take the largest gear, in steps of 32 bytes.
    assert [t.size_bytes for t in info.inputs] == [64, 32, 32]
    assert [t.size_bytes for t in info.outputs] == [2 * 8 * 40 * 2, 16 * 64 * 2]


def test_the_operators_show_the_gears(flags: Flags) -> None:
    (model,) = facts_of(flags).models
    assert model.graph is not None
    assert model.graph.gears == replace(model.graph.gears, kind="dims", values=((1, 4), (2, 8)))
    assert model.graph.num_graphs == 3
    assert model.graph.op_counts["BatchMatMulV2"] == 2
    assert model.graph.op_counts["RmsNorm"] == 2
    assert [t.dims for t in model.graph.inputs] == [(-1, -1), (1,), (2,)]
    assert [t.name for t in model.graph.outputs] == ["scaled:0:y", "rows:0:rows"]


def test_gear_inputs_have_the_largest_shape_and_the_open_one_in_an_attribute(
    flags: Flags,
) -> None:
    path = compiled(flags, dynamic_dims="2,8;1,4")
    model = read_model_def(read_om(path).blocks[0].partitions[PartitionType.MODEL_DEF])
    main_graph = model.graphs[0]
    ids = next(main_graph.decode(m) for kind, m in main_graph.op_messages() if kind == "Data")
    assert ids.input_descs[0].dims == (2, 8)
    assert ids.attributes["_mbatch_origin_input_dims"] == (-1, -1)


def test_a_static_om_has_no_gears(flags: Flags) -> None:
    (model,) = facts_of(flags, **STATIC).models
    assert model.gears is None
    assert [t.dims for t in model.inputs] == [(2, 8), (1,)]
    assert [t.dims for t in model.outputs] == [(2, 8, 40), (16, 64)]
    assert model.graph is not None
    assert model.graph.num_graphs == 1
    program = SimulatedProgram.read(read_om(flags.folder / "out.om"))
    inputs = onnx.load_model_from_string(bytes(program.model)).graph.input
    assert [[d.dim_value for d in i.type.tensor_type.shape.dim] for i in inputs] == [[2, 8], [1]]


def test_the_om_says_what_it_is(flags: Flags) -> None:
    facts = facts_of(flags, precision_mode_v2="origin")
    (model,) = facts.models
    assert facts.header.name == "simatc_out"
    assert "made by simatc" in facts.warnings[0]
    assert model.attribute("soc_version") == "Ascend310P3"
    assert model.attribute("atc_cmdline").split()[1:] == flags.argv(precision_mode_v2="origin")
    assert "simatc" in model.attribute("atc_version")
    inside = TABLE.nbytes + HEAD.nbytes
    assert model.attributes["weight_size"] == inside
    assert model.attributes["om_info_list"] == (
        dict(model.partitions)["WEIGHTS_DATA"], 0, 0, dict(model.partitions)["TASK_INFO"], 0
    )  # fmt: skip
    io_bytes = sum(t.size_bytes for t in (*model.inputs, *model.outputs))
    assert model.attributes["zero_copy_memory_size"] == io_bytes
    assert int(model.attribute("memory_size")) > io_bytes


def test_equal_input_and_flags_give_equal_bytes(flags: Flags) -> None:
    first = compiled(flags).read_bytes()
    assert compiled(flags).read_bytes() == first
    assert compiled(flags, dynamic_dims="1,4;2,9").read_bytes() != first


def test_weight_files_are_shared_by_content(flags: Flags) -> None:
    compiled(flags, external_weight="1")
    assert flags.run(external_weight="1", output=str(flags.folder / "other"), **STATIC) == 0
    files = sorted(p.name for p in (flags.folder / "weight").iterdir())
    digests = [hashlib.sha256(array.tobytes()).digest() for array in (TABLE, HEAD)]
    # Bytes below 16 are one digit long in the names of atc.
    assert files == sorted("weight_" + "".join(f"{b:x}" for b in digest) for digest in digests)


def test_external_weights_are_named_in_the_graph(flags: Flags) -> None:
    (model,) = facts_of(flags, external_weight="1").models
    assert model.graph is not None
    names = {w.location for w in model.graph.external_weights}
    assert names == {p.name for p in (flags.folder / "weight").iterdir()}
    assert model.attributes["weight_size"] == 0


def test_one_combined_file_is_aligned(flags: Flags) -> None:
    (model,) = facts_of(flags, external_weight="2").models
    assert model.graph is not None
    assert [(w.location, w.offset % 512) for w in model.graph.external_weights] == [
        ("out_weight_combined", 0),
        ("out_weight_combined", 0),
    ]


def test_a_build_that_fails_leaves_nothing(flags: Flags) -> None:
    (flags.folder / "step.weights").unlink()
    before = sorted(flags.folder.iterdir())
    assert flags.run(external_weight="1") == 255
    assert sorted(flags.folder.iterdir()) == before


def test_operators_of_the_ai_cpu_are_listed(tmp_path: Path) -> None:
    save(one_node(helper.make_node("IsNaN", ["x"], ["y"], "nan")), tmp_path)
    model = onnx.load(tmp_path / "step.onnx")
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.BOOL
    save(model, tmp_path, are_weights_outside=False)
    facts = facts_of(Flags(tmp_path), input_shape="x:1,4", dynamic_dims=None)
    assert "operators left the AI Core for the AI CPU: IsNan" in facts.warnings


def test_an_output_whose_shape_depends_on_data_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(
        [helper.make_node("Expand", ["x", "n"], ["y"], "expand")],
        [value("x", HALF, [1, 4]), value("n", onnx.TensorProto.INT64, [2])],
        [value("y", HALF, ["batch", 4])],
    )
    save(model, tmp_path, are_weights_outside=False)
    assert Flags(tmp_path).run(input_shape="x:1,4;n:2", dynamic_dims=None) == 255
    assert "the shape of output 'y' does not follow" in capsys.readouterr().err


def test_an_unknown_npu_operator_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = helper.make_node("NPUGeluV2", ["x"], ["y"], "gelu", domain="npu")
    save(one_node(node), tmp_path, are_weights_outside=False)
    assert Flags(tmp_path).run(input_shape="x:1,4", dynamic_dims=None) == 255
    assert "gelu" in capsys.readouterr().err


def test_unnamed_nodes_get_the_names_of_atc(tmp_path: Path) -> None:
    save(one_node(helper.make_node("Relu", ["x"], ["y"])), tmp_path, are_weights_outside=False)
    (model,) = facts_of(Flags(tmp_path), input_shape="x:1,4", dynamic_dims=None).models
    assert [t.name for t in model.outputs] == ["Relu_0:0:y"]


def test_the_reference_of_the_program_is_the_exporters(flags: Flags) -> None:
    """The same expansion, so that a simulated device answers as the parity gate does."""
    program = SimulatedProgram.read(read_om(compiled(flags)))
    ours = onnx.load_model_from_string(bytes(program.model))
    wanted = expand_npu_ops(onnx.load(flags.folder / "step.onnx"))
    assert [n.op_type for n in ours.graph.node] == [n.op_type for n in wanted.graph.node]
    assert {n.domain for n in ours.graph.node} <= {"", "com.microsoft"}
