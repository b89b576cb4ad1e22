"""What the native device adds to the conformance suite: its graphs, folding and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from omruntime.buckets import Bucket, Phase
from omruntime.device import DeviceTensor, open_device
from omruntime.errors import BundleError, ConfigError
from omruntime.manifest import ProgramSpec, TensorSpec
from omruntime.native import library
from tests.omruntime.native.kernels import needs_library
from tests.omruntime.toy_model import INPUTS, OUTPUTS, write_toy_bundle

BUCKET = Bucket(Phase.PREFILL, 2, 3, 1)
WIDTH = 8


def model_of(
    nodes: list[onnx.NodeProto], constants: dict[str, NDArray[np.generic]] | None = None
) -> onnx.ModelProto:
    """A graph from x [rows, WIDTH] to y."""
    shape = ["rows", WIDTH]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def run_on(name: str, folder: Path, model: onnx.ModelProto, shape: tuple[int, ...]) -> np.ndarray:
    """What a device makes of x = 0, 1, 2 ...; y has a shape."""
    x = np.arange(4 * WIDTH, dtype=np.float32).reshape(4, WIDTH)
    onnx.save(model, folder / "graph.onnx")
    tensors = TensorSpec("x", "float32", x.shape), TensorSpec("y", "float32", shape)
    spec = ProgramSpec("step", "graph.onnx", tensors[:1], tensors[1:], (BUCKET,))
    device = open_device(name, num_threads=1)
    program = device.load_program(spec, folder)
    given = DeviceTensor(device.alloc(x.nbytes), 0, x.shape, "float32")
    result = DeviceTensor(device.alloc(4 * int(np.prod(shape))), 0, shape, "float32")
    device.copy_in(given, x)
    program.bind(BUCKET, {"x": given}, {"y": result})
    program.run(BUCKET)
    program.run(BUCKET)
    y = device.copy_out(result).copy()
    device.close()
    return y


def require_same(folder: Path, model: onnx.ModelProto, shape: tuple[int, ...]) -> None:
    native, onnx_runtime = (run_on(name, folder, model, shape) for name in ("native", "cpu"))
    np.testing.assert_allclose(native, onnx_runtime, rtol=1e-5, atol=1e-5)
    assert np.abs(native).max() > 0


@needs_library
def test_views_and_sizes_cost_no_kernel(tmp_path: Path) -> None:
    """Sizes that the graph computes are known when a bucket is bound."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["rows"], start=0, end=1),
        node("Mul", ["rows", "two"], ["double"]),
        node("Concat", ["double", "rest"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["halves"]),
        node("Transpose", ["halves"], ["turned"], perm=[1, 0]),
        node("Split", ["turned", "parts"], ["first", "second"], axis=0),
        node("Unsqueeze", ["second", "zero"], ["lifted"]),
        node("Slice", ["lifted", "one", "four", "two"], ["window"]),
        node("Squeeze", ["window", "zero"], ["flat"]),
        node("Neg", ["flat"], ["y"]),
    ]
    numbers = {"two": [2], "rest": [-1], "parts": [1, 3], "zero": [0], "one": [1], "four": [4]}
    model = model_of(nodes, {k: np.array(v, np.int64) for k, v in numbers.items()})
    require_same(tmp_path, model, (3, 3))


@needs_library
@pytest.mark.parametrize("has_residual", [False, True])
def test_a_product_takes_its_bias_and_residual(tmp_path: Path, has_residual: bool) -> None:
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((WIDTH, WIDTH)).astype(np.float32),
        "b": rng.standard_normal(WIDTH).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["b", "product"], ["biased" if has_residual else "y"]),
        helper.make_node("Add", ["x", "biased"], ["y"]),
    ]
    require_same(tmp_path, model_of(nodes[: 2 + has_residual], constants), (4, WIDTH))


@needs_library
def test_a_sum_of_two_products(tmp_path: Path) -> None:
    """Each could begin from the other; one does."""
    w = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Gemm", ["x", "w"], ["b"], transB=1),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    require_same(tmp_path, model_of(nodes, {"w": w}), (4, WIDTH))


@needs_library
def test_a_product_that_is_used_twice_stays_itself(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["x", "a"], ["b"]),
        helper.make_node("Mul", ["a", "b"], ["y"]),
    ]
    require_same(tmp_path, model_of(nodes, {"w": w}), (4, WIDTH))


@needs_library
@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_stored_matrices_are_widened_in_registers(tmp_path: Path, weights: str) -> None:
    rng, node = np.random.default_rng(0), helper.make_node
    if weights == "int8":
        constants = {
            "w": rng.integers(-127, 128, (WIDTH, 5)).astype(np.int8),
            "scales": rng.random(5).astype(np.float32),
        }
        widening = [node("DequantizeLinear", ["w", "scales"], ["wide"], axis=1)]
        model = model_of([*widening, node("MatMul", ["x", "wide"], ["y"])], constants)
    else:
        values = np.array([0.5, -3, 7, 1.25], np.float32).repeat(10).reshape(WIDTH, 5)
        model = model_of(
            [node("Cast", ["w"], ["wide"], to=1), node("MatMul", ["x", "wide"], ["y"])]
        )
        bits = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        model.graph.initializer.append(
            helper.make_tensor("w", TensorProto.BFLOAT16, (WIDTH, 5), bits, raw=True)
        )
    native = run_on("native", tmp_path, model, (4, 5))
    openvino = run_on("openvino", tmp_path, model, (4, 5))
    np.testing.assert_allclose(native, openvino, rtol=1e-3)


@needs_library
def test_operators_without_a_kernel_are_refused_by_name(tmp_path: Path) -> None:
    bundle = write_toy_bundle(tmp_path / "toy")
    spec = ProgramSpec("step", "programs/step.onnx", INPUTS, OUTPUTS, (BUCKET,))
    with pytest.raises(BundleError, match=r"no kernel for .*Mod \(node .*OneHot .*--device cpu"):
        open_device("native").load_program(spec, bundle)


@needs_library
@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ([helper.make_node("MatMul", ["x", "x"], ["y"], "turn")], "node turn: .*constant matrix"),
        ([helper.make_node("Gemm", ["x", "w"], ["y"], "g", alpha=0.5)], "node g: .*factors"),
        ([helper.make_node("Celu", ["x"], ["y"], "c")], r"no kernel for Celu \(node c\)"),
    ],
)
def test_products_that_no_kernel_does_are_refused(
    tmp_path: Path, nodes: list[onnx.NodeProto], problem: str
) -> None:
    model = model_of(nodes, {"w": np.ones((WIDTH, WIDTH), np.float32)})
    with pytest.raises(BundleError, match=problem):
        run_on("native", tmp_path, model, (4, WIDTH))


@needs_library
def test_shapes_that_do_not_fit_are_refused_with_bucket_and_node(tmp_path: Path) -> None:
    model = model_of(
        [helper.make_node("Add", ["x", "b"], ["y"], "sum")], {"b": np.ones((3, 5), np.float32)}
    )
    with pytest.raises(BundleError, match=r"batch=2.*node sum: shape mismatch"):
        run_on("native", tmp_path, model, (4, WIDTH))


@needs_library
@pytest.mark.parametrize(
    ("location", "problem"),
    [("../w.bin", "wanted a file beside the graph"), ("short.bin", "ends before its 256 bytes"),
     ("absent.bin", "No such file")],
)  # fmt: skip
def test_weights_elsewhere_are_refused(tmp_path: Path, location: str, problem: str) -> None:
    (tmp_path / "short.bin").write_bytes(b"1234")
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])])
    weights = TensorProto(name="w", dims=(WIDTH, WIDTH), data_type=TensorProto.FLOAT)
    weights.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "256")):
        weights.external_data.add(key=key, value=value)
    model.graph.initializer.append(weights)
    (tmp_path / "graph.onnx").write_bytes(model.SerializeToString())
    tensors = TensorSpec("x", "float32", (4, WIDTH)), TensorSpec("y", "float32", (4, WIDTH))
    spec = ProgramSpec("step", "graph.onnx", tensors[:1], tensors[1:], (BUCKET,))
    with pytest.raises(BundleError, match=problem):
        open_device("native").load_program(spec, tmp_path)


def test_a_build_without_kernels_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    library.load_library.cache_clear()
    with pytest.raises(ConfigError, match=r"not compiled; install a C\+\+17 compiler"):
        open_device("native")
    library.load_library.cache_clear()


@needs_library
def test_packed_weights_of_a_file_take_memory_once(tmp_path: Path) -> None:
    """They are packed into memory of their own, and the file's pages are given back."""
    wide = np.random.default_rng(0).standard_normal((WIDTH, 1 << 16)).astype(np.float32)
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": wide})
    onnx.save(model, tmp_path / "graph.onnx", save_as_external_data=True, location="graph.weights")
    tensors = (
        TensorSpec("x", "float32", (4, WIDTH)),
        TensorSpec("y", "float32", (4, wide.shape[1])),
    )
    spec = ProgramSpec("step", "graph.onnx", tensors[:1], tensors[1:], (BUCKET,))
    device = open_device("native", num_threads=1)
    program = device.load_program(spec, tmp_path)
    assert resident_bytes_of(tmp_path / "graph.weights") < wide.nbytes // 10
    program.unload()
    device.close()


def resident_bytes_of(path: Path) -> int:
    """What this process holds in memory of a file that it has mapped."""
    maps = Path("/proc/self/smaps").read_text().split(f" {path}\n")
    assert len(maps) > 1, f"{path} is not mapped"
    sizes = [line.split() for line in maps[1].splitlines() if line.startswith("Rss:")]
    return int(sizes[0][1]) * 1024
