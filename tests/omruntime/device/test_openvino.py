"""What the openvino device adds to the conformance suite: its operators, types and refusals."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from omruntime.buckets import Bucket, Phase
from omruntime.device import Device, DeviceTensor, open_device
from omruntime.errors import ConfigError
from omruntime.llm import LLM
from omruntime.manifest import ProgramSpec, TensorSpec
from omruntime.sampling_params import SamplingParams
from tests.omruntime.toy_model import toy_answer, write_toy_bundle

BUCKET = Bucket(Phase.PREFILL, 2, 3, 1)
BATCH, HEADS, TOKENS, DIM, ROWS = 2, 2, 3, 8, 16


def run_once(
    device: Device, folder: Path, model: onnx.ModelProto, arrays: dict[str, np.ndarray]
) -> np.ndarray:
    """Run a graph with one output `y`, float32 or bfloat16, whose shape is that of `x`."""
    onnx.save(model, folder / "graph.onnx")
    types = {TensorProto.FLOAT: "float32", TensorProto.INT32: "int32",
             TensorProto.BFLOAT16: "bfloat16"}  # fmt: skip
    specs = [
        TensorSpec(v.name, types[v.type.tensor_type.elem_type], arrays[v.name].shape)
        for v in model.graph.input
    ]
    (y,) = model.graph.output
    out = TensorSpec("y", types[y.type.tensor_type.elem_type], arrays["x"].shape)
    program = device.load_program(
        ProgramSpec("step", "graph.onnx", tuple(specs), (out,), (BUCKET,)), folder
    )
    bound = {}
    for spec in (*specs, out):
        size = DeviceTensor(device.alloc(1 << 12), 0, arrays["x"].shape, "uint8")
        bound[spec.name] = DeviceTensor(size.buffer, 64, spec.shape, spec.dtype)
    for spec in specs:
        device.copy_in(bound[spec.name], arrays[spec.name])
    program.bind(BUCKET, {s.name: bound[s.name] for s in specs}, {"y": bound["y"]})
    program.run(BUCKET)
    result = device.copy_out(bound["y"]).copy()
    program.unload()
    return result


def model_of(nodes: list[onnx.NodeProto], inputs: dict[str, int], output: int) -> onnx.ModelProto:
    ranks = {"x": 4, "ids": 2, "cos": 2, "sin": 2}
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info(
                n, t, [None] * 3 + [DIM] if n == "x" else [None] * ranks[n]
            )
            for n, t in inputs.items()
        ],
        [helper.make_tensor_value_info("y", output, [None] * 3 + [DIM])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_rotary_embedding_is_that_of_onnx_runtime(tmp_path: Path) -> None:
    """Its reader lacks the operator, so ours stands in."""
    rng = np.random.default_rng(0)
    angles = rng.standard_normal((ROWS, DIM // 2)).astype(np.float32)
    arrays = {
        "x": rng.standard_normal((BATCH, HEADS, TOKENS, DIM)).astype(np.float32),
        "ids": rng.integers(0, ROWS, (BATCH, TOKENS)).astype(np.int32),
        "cos": np.cos(angles),
        "sin": np.sin(angles),
    }
    nodes = [
        helper.make_node("Cast", ["ids"], ["long"], to=TensorProto.INT64),
        helper.make_node(
            "RotaryEmbedding", ["x", "long", "cos", "sin"], ["y"], domain="com.microsoft"
        ),
    ]
    floats = dict.fromkeys(("x", "cos", "sin"), TensorProto.FLOAT)
    model = model_of(nodes, {**floats, "ids": TensorProto.INT32}, TensorProto.FLOAT)
    results = [
        run_once(open_device(name, num_threads=1), tmp_path, model, arrays)
        for name in ("cpu", "openvino")
    ]
    np.testing.assert_allclose(results[1], results[0], atol=1e-6)
    assert np.abs(results[1] - arrays["x"]).max() > 0.1


def test_bfloat16_goes_in_and_out_as_it_is(tmp_path: Path) -> None:
    model = model_of(
        [helper.make_node("Identity", ["x"], ["y"])],
        {"x": TensorProto.BFLOAT16},
        TensorProto.BFLOAT16,
    )
    bits = np.arange(0x3F00, 0x3F00 + 96, dtype=np.uint16).reshape(BATCH, 2, TOKENS, DIM)
    result = run_once(open_device("openvino", num_threads=1), tmp_path, model, {"x": bits})
    np.testing.assert_array_equal(result, bits)


def test_the_engine_answers_exactly_on_it(tmp_path: Path) -> None:
    bundle = write_toy_bundle(tmp_path / "toy")
    prompts = [(3, 1, 4), (1, 5, 9, 2, 6, 5, 3), (5,)]
    params = SamplingParams(temperature=0.0, max_new_tokens=12, ignore_eos=True)
    with LLM(bundle, device=open_device("openvino", num_threads=1)) as llm:
        outputs = llm.generate(prompts, params, progress=False)
    assert [o.token_ids for o in outputs] == [toy_answer(p, 12) for p in prompts]


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name == "openvino" or name.startswith(("openvino.", "omruntime.device.openvino")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[openvino\]' in omserve's folder"):
        open_device("openvino")


def test_onnx_runtime_refuses_a_bfloat16_cache(tmp_path: Path) -> None:
    spec = ProgramSpec("step", "g", (TensorSpec("kv_pool", "bfloat16", (1,)),), (), (BUCKET,))
    with pytest.raises(ConfigError, match="--device openvino"):
        open_device("cpu").load_program(spec, tmp_path)
