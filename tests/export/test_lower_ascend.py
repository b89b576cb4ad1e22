"""The lowering rules one by one, over graphs of a few nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from export.expanded_session import open_expanded
from export.lower_ascend import lower_ascend
from export.onnx_writer import GraphWriter
from export.profiles import ASCEND310B, ASCEND310P, Profile
from omruntime.errors import ExportError
from omruntime.manifest import TensorSpec
from tests.export.half import product_types

Build = Callable[[GraphWriter], list[str]]
Tensors = dict[str, np.ndarray]
BOTH = pytest.mark.parametrize("profile", [ASCEND310P, ASCEND310B], ids=lambda p: p.name)


def lower(build: Build, profile: Profile, given_inputs: Tensors, folder: Path) -> Path:
    """Lower a graph whose outputs are float16 and write it."""
    writer = GraphWriter()
    inputs = [TensorSpec(n, v.dtype.name, v.shape) for n, v in given_inputs.items()]
    writer.sizes.update({n: v.shape for n, v in given_inputs.items()})
    outputs = {
        name: TensorSpec(f"y{i}", "float16", ("n",) * 2) for i, name in enumerate(build(writer))
    }
    lowered, named = lower_ascend(writer, profile, inputs, outputs)
    path = folder / "g.onnx"
    lowered.save(path, folder / "g.weights", inputs, named)
    return path


def run(path: Path, inputs: Tensors) -> list[np.ndarray]:
    names = {v.name for v in onnx.load(path, load_external_data=False).graph.input}
    session = open_expanded(path, 1)
    return list(session.run(None, {n: v for n, v in inputs.items() if n in names}))


def ops(path: Path) -> Counter[str]:
    return Counter(n.op_type for n in onnx.load(path, load_external_data=False).graph.node)


def norm_graph(eps: float, gamma: np.ndarray) -> Build:
    def build(writer: GraphWriter) -> list[str]:
        def scalar(value: float) -> str:
            return writer.constant(torch.tensor(value), "scalar")

        square = writer.emit("Pow", ["x", scalar(2.0)])
        mean = writer.emit("ReduceMean", [square, writer.ints([-1])], keepdims=1)
        root = writer.emit("Sqrt", [writer.emit("Add", [mean, scalar(eps)])])
        normal = writer.emit("Mul", ["x", writer.emit("Reciprocal", [root])])
        weight = writer.constant(torch.from_numpy(gamma), "gamma")
        return [writer.emit("Mul", [weight, normal])]

    return build


def rms_norm(x: np.ndarray, gamma: np.ndarray, eps: float) -> np.ndarray:
    wide = x.astype(np.float64)
    return np.asarray(wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps) * gamma)


def gamma_of(width: int) -> np.ndarray:
    return np.random.default_rng(0).normal(1.0, 0.2, width).astype(np.float16).astype(np.float32)


@pytest.mark.parametrize(("eps", "num_scaled"), [(1e-6, 0), (1e-5, 1), (1e-3, 1)])
def test_a_norm_is_one_operator_whatever_its_epsilon(
    eps: float, num_scaled: int, tmp_path: Path
) -> None:
    """The operator's epsilon is fixed; the scaled input makes it the norm's own."""
    gamma = gamma_of(64)
    # Around the square root of eps, where the epsilon decides.
    x = np.random.default_rng(1).normal(0, eps**0.5, (9, 64)).astype(np.float16)
    path = lower(norm_graph(eps, gamma), ASCEND310P, {"x": x}, tmp_path)
    assert ops(path) == Counter(NPURmsNorm=1, Mul=num_scaled)
    (y,) = run(path, {"x": x})
    np.testing.assert_allclose(y, rms_norm(x, gamma, eps), rtol=2e-3, atol=1e-4)


@settings(max_examples=60)
@given(st.floats(1e-6, 1e-2), st.floats(-7, 4), st.integers(0, 2**32 - 1))
def test_scaling_a_norms_input_is_exact(eps: float, exponent: float, seed: int) -> None:
    """In real arithmetic exactly; in float16 within two roundings, or 3e-5 near nothing."""
    x = (np.random.default_rng(seed).normal(size=(2, 64)) * 10**exponent).astype(np.float16)
    scale = (1e-6 / eps) ** 0.5
    ones = np.ones(64)
    exact = rms_norm(x.astype(np.float64) * scale, ones, 1e-6)
    np.testing.assert_allclose(exact, rms_norm(x, ones, eps), rtol=1e-12)
    scaled = x * np.float16(scale)
    assert np.isfinite(scaled).all()
    np.testing.assert_allclose(
        rms_norm(scaled, ones, 1e-6), rms_norm(x, ones, eps), rtol=1.5e-3, atol=1e-4
    )


@pytest.mark.parametrize(
    ("eps", "width", "why"),
    [(1e-8, 64, "the scale could overflow"), (1e-6, 8, "an axis below 32 bytes")],
)
def test_a_norm_beyond_the_operators_limits_is_spelled_out(
    eps: float, width: int, why: str, tmp_path: Path
) -> None:
    gamma = gamma_of(width)
    x = np.random.default_rng(2).normal(0, 3000.0, (4, width)).astype(np.float16)
    path = lower(norm_graph(eps, gamma), ASCEND310P, {"x": x}, tmp_path)
    assert ops(path)["NPURmsNorm"] == 0, why
    (y,) = run(path, {"x": x})
    np.testing.assert_allclose(y, rms_norm(x, gamma, eps), rtol=6e-4, atol=1e-4)


def test_310b_has_plain_norms(tmp_path: Path) -> None:
    gamma = gamma_of(64)
    x = np.random.default_rng(2).normal(0, 3000.0, (4, 64)).astype(np.float16)
    path = lower(norm_graph(1e-6, gamma), ASCEND310B, {"x": x}, tmp_path)
    assert ops(path) == Counter(Cast=2, Mul=3, ReduceMean=1, Add=1, Sqrt=1, Reciprocal=1)
    (y,) = run(path, {"x": x})
    np.testing.assert_allclose(y, rms_norm(x, gamma, 1e-6), rtol=6e-4, atol=1e-4)


def rotary_graph(half: int) -> Build:
    def build(writer: GraphWriter) -> list[str]:
        def part(start: int, end: int) -> str:
            bounds = [writer.ints([value]) for value in (start, end, -1, 1)]
            return writer.emit("Slice", ["x", *bounds])

        turned = [writer.emit("Neg", [part(half, 2 * half)]), part(0, half)]
        across = writer.emit("Mul", [writer.emit("Concat", turned, axis=-1), "sin"])
        return [writer.emit("Add", [writer.emit("Mul", ["x", "cos"]), across])]

    return build


@pytest.mark.parametrize(
    ("profile", "half", "num_fused"),
    [(ASCEND310P, 32, 1), (ASCEND310P, 64, 1), (ASCEND310P, 16, 0), (ASCEND310B, 32, 0)],
)
def test_rotary_is_one_operator_over_heads_of_64(
    profile: Profile, half: int, num_fused: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    angles = rng.normal(size=(2, 1, 3, 2 * half))
    x = rng.normal(size=(2, 5, 3, 2 * half)).astype(np.float16)
    inputs = {"x": x, "cos": np.cos(angles).astype("f2"), "sin": np.sin(angles).astype("f2")}
    path = lower(rotary_graph(half), profile, inputs, tmp_path)
    assert ops(path)["NPURotaryMul"] == num_fused
    assert ops(path)["Slice"] == (0 if num_fused or profile is ASCEND310B else 2)
    turned = np.concatenate([-x[..., half:], x[..., :half]], axis=-1).astype(np.float64)
    wanted = x * inputs["cos"].astype(np.float64) + turned * inputs["sin"]
    (y,) = run(path, inputs)
    np.testing.assert_allclose(y, wanted, rtol=1e-3, atol=3e-3)


@BOTH
def test_top_k_is_counted_with_ties_by_index(profile: Profile, tmp_path: Path) -> None:
    def build(writer: GraphWriter) -> list[str]:
        count = writer.ints([3])
        values, indices = writer.emit_many("TopK", ["x", count], 2, axis=-1, largest=1, sorted=1)
        return [values, indices]

    x = np.random.default_rng(4).integers(-3, 3, (20, 7)).astype(np.float16)
    path = lower(build, profile, {"x": x}, tmp_path)
    assert ops(path)["TopK"] == 0
    values, indices = run(path, {"x": x})
    wanted = np.argsort(-x, axis=-1, kind="stable")[:, :3]
    np.testing.assert_array_equal(indices, wanted)
    np.testing.assert_array_equal(values, np.take_along_axis(x, wanted, axis=-1))


@BOTH
def test_products_are_float16_and_transpose_by_attribute(profile: Profile, tmp_path: Path) -> None:
    def build(writer: GraphWriter) -> list[str]:
        turned = writer.emit("Transpose", ["b"], perm=[0, 2, 1])
        score = writer.emit("MatMul", ["a", turned])
        return [writer.emit("MatMul", [writer.emit("Softmax", [score], axis=-1), "b"])]

    rng = np.random.default_rng(5)
    inputs = {n: rng.normal(size=(2, 4, 16)).astype(np.float16) for n in ("a", "b")}
    path = lower(build, profile, inputs, tmp_path)
    model = onnx.load(path)
    assert ops(path) == Counter(MatMul=2, Softmax=1, Cast=2)
    assert product_types(model) == {TensorProto.FLOAT16}
    assert [a.name for a in model.graph.node[0].attribute] == ["transB"]
    (y,) = run(path, inputs)
    score = inputs["a"].astype(np.float64) @ inputs["b"].astype(np.float64).transpose(0, 2, 1)
    weights = np.exp(score) / np.exp(score).sum(-1, keepdims=True)
    np.testing.assert_allclose(y, weights @ inputs["b"], rtol=1e-2, atol=2e-3)


def test_a_constant_beyond_float16_stays_float32(tmp_path: Path) -> None:
    """1e-9 would round to nothing, and 1e6 to infinity."""

    def build(writer: GraphWriter) -> list[str]:
        large, small = (writer.constant(torch.tensor(v), "c") for v in (1e6, 1e-9))
        scaled = writer.emit("Mul", [writer.emit("Mul", ["x", large]), small])
        return [writer.emit("Mul", [scaled, writer.constant(torch.tensor(1000.0), "c")])]

    x = np.linspace(1, 100, 8, dtype=np.float16).reshape(1, 8)
    (y,) = run(lower(build, ASCEND310P, {"x": x}, tmp_path), {"x": x})
    np.testing.assert_allclose(y, x, rtol=1e-3)


def test_a_slice_that_no_gather_can_stand_for_is_refused(tmp_path: Path) -> None:
    def build(writer: GraphWriter) -> list[str]:
        end = writer.emit("Shape", ["x"], start=0, end=1)
        return [
            writer.emit("Slice", ["x", writer.ints([0]), end, *(writer.ints([i]) for i in (0, 1))])
        ]

    x = np.zeros((4, 4), np.float16)
    with pytest.raises(ExportError, match="computed at run time, wanted a constant"):
        lower(build, ASCEND310B, {"x": x}, tmp_path)
