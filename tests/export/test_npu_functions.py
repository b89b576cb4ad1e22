"""The npu operators' reference definitions, held against NumPy in float64."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.npu_functions import expand_npu_ops
from omruntime.errors import ExportError

Tensors = dict[str, np.ndarray]


def npu_model(
    op_type: str, inputs: Tensors, outputs: dict[str, int], opset: int = 18
) -> onnx.ModelProto:
    node = helper.make_node(op_type, list(inputs), list(outputs), name="node", domain="npu")
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), [None] * value.ndim
            )
            for name, value in inputs.items()
        ],
        [
            helper.make_tensor_value_info(name, kind, [None] * inputs["x"].ndim)
            for name, kind in outputs.items()
        ],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("npu", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run(model: onnx.ModelProto, inputs: Tensors) -> list[np.ndarray]:
    onnx.checker.check_model(model)
    assert all(o.domain != "npu" for o in model.opset_import)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, inputs))


def rms_norm_inputs(dtype: str) -> Tensors:
    rng = np.random.default_rng(0)
    x = rng.normal(scale=3.0, size=(2, 5, 64))
    return {"x": x.astype(dtype), "gamma": rng.normal(size=64).astype(dtype)}


def rms_norm(given: Tensors) -> tuple[np.ndarray, np.ndarray]:
    x, gamma = (given[name].astype(np.float64) for name in ("x", "gamma"))
    rstd = 1 / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6)
    return x * rstd * gamma, rstd


@pytest.mark.parametrize(
    ("dtype", "kind"), [("float16", TensorProto.FLOAT16), ("float32", TensorProto.FLOAT)]
)
def test_rms_norm_is_float32_inside_and_rounded_once(dtype: str, kind: int) -> None:
    given = rms_norm_inputs(dtype)
    model = npu_model("NPURmsNorm", given, {"y": kind, "rstd": TensorProto.FLOAT})
    y, rstd = run(expand_npu_ops(model), given)
    wanted_y, wanted_rstd = rms_norm(given)
    assert (str(y.dtype), str(rstd.dtype)) == (dtype, "float32")
    np.testing.assert_allclose(rstd, wanted_rstd, rtol=1e-6)
    # Half a unit in the last place of the output's type, and no more.
    np.testing.assert_allclose(
        y, wanted_y, rtol=0.51 * float(np.finfo(y.dtype).eps) + 4e-7, atol=1e-7
    )


def test_rms_norm_of_large_values_stays_finite() -> None:
    """The square of 300 has no float16."""
    given = rms_norm_inputs("float16")
    given["x"] = (given["x"] * np.float16(1000)).astype(np.float16)
    model = npu_model("NPURmsNorm", given, {"y": TensorProto.FLOAT16})
    (y,) = run(expand_npu_ops(model), given)
    np.testing.assert_allclose(y, rms_norm(given)[0], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("opset", [17, 18])
def test_rms_norm_has_the_fixed_epsilon(opset: int) -> None:
    given = rms_norm_inputs("float32")
    given["x"] *= np.float32(1e-4)
    model = npu_model("NPURmsNorm", given, {"y": TensorProto.FLOAT}, opset)
    (y,) = run(expand_npu_ops(model), given)
    np.testing.assert_allclose(y, rms_norm(given)[0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("opset", [17, 18])
def test_rotary_turns_halves(opset: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 3, 4, 64)).astype(np.float16)
    angles = rng.normal(size=(2, 3, 1, 64))
    given = {"x": x, "cos": np.cos(angles).astype("f2"), "sin": np.sin(angles).astype("f2")}
    model = npu_model("NPURotaryMul", given, {"y": TensorProto.FLOAT16}, opset)
    (y,) = run(expand_npu_ops(model), given)
    wide = {name: value.astype(np.float64) for name, value in given.items()}
    turned = np.concatenate([-wide["x"][..., 32:], wide["x"][..., :32]], axis=-1)
    wanted = wide["x"] * wide["cos"] + turned * wide["sin"]
    np.testing.assert_allclose(y, wanted, rtol=5.1e-4, atol=1e-6)


def test_the_given_model_is_left_alone() -> None:
    given = rms_norm_inputs("float16")
    model = npu_model("NPURmsNorm", given, {"y": TensorProto.FLOAT16})
    before = model.SerializeToString()
    expand_npu_ops(model)
    assert model.SerializeToString() == before


def test_an_unknown_npu_operator_is_named() -> None:
    given = rms_norm_inputs("float16")
    with pytest.raises(ExportError, match="node: npu operator NPUGeluV2 has no reference"):
        expand_npu_ops(npu_model("NPUGeluV2", given, {"y": TensorProto.FLOAT16}))


def half_model(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    """`x` float16 [n, 4] to `y` float32, with constants w [4, 4] of 100s and c of 0.001."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [
            numpy_helper.from_array(np.full((4, 4), 100, np.float16), "w"),
            numpy_helper.from_array(np.float16(0.001), "c"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def node(op_type: str, inputs: str, output: str, **attributes: int) -> onnx.NodeProto:
    name = f"{op_type}_{output}"
    return helper.make_node(op_type, inputs.split(), [output], name=name, **attributes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "nodes",
    [
        [node("MatMul", "x w", "m"), node("Add", "m x", "s"), node("Cast", "s", "y", to=1)],
        [node("MatMul", "x w", "m"), node("MatMul", "m w", "s"), node("Cast", "s", "y", to=1)],
        [node("Mul", "x x", "m"), node("Mul", "m c", "s"), node("Cast", "s", "y", to=1)],
        [node("Gemm", "x w", "m"), node("Cast", "m", "y", to=1)],
    ],
    ids=lambda nodes: "-".join(n.op_type for n in nodes),
)
def test_float16_ends_where_it_ends(nodes: list[onnx.NodeProto]) -> None:
    """ONNX Runtime alone would carry 120000 in float32 from one node to the next."""
    inputs = {"x": np.full((1, 4), 300, np.float16)}
    (y,) = run(expand_npu_ops(half_model(nodes)), inputs)
    assert np.isinf(y).all()


def test_each_result_is_rounded_once_and_sums_are_not() -> None:
    """2048 + 1 has no float16; the sum inside of a product holds it."""
    inputs = {"x": np.array([[2048, 1, 1, 0]], np.float16)}
    added = [node("Add", "x x", "s"), node("Add", "s x", "t"), node("Cast", "t", "y", to=1)]
    (y,) = run(expand_npu_ops(half_model(added)), inputs)
    assert y.tolist() == [[6144, 3, 3, 0]]
    product = [node("MatMul", "x w", "s"), node("Mul", "s c", "t"), node("Cast", "t", "y", to=1)]
    inputs["x"] = np.array([[1, 0.01, 0.01, 0]], np.float16)
    (y,) = run(expand_npu_ops(half_model(product)), inputs)
    exact = float(inputs["x"].astype(np.float64).sum()) * 100
    rounded = np.float16(float(np.float16(exact)) * float(np.float16(0.001)))
    np.testing.assert_array_equal(y, np.full((1, 4), rounded, np.float32))


@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 1), (1, 0), (1, 1)])
def test_products_transpose_by_attribute(trans_a: int, trans_b: int) -> None:
    """ATC reads transA and transB of MatMul, which standard ONNX does not have."""
    rng = np.random.default_rng(6)
    given = {name: rng.normal(size=(2, 3, 4, 4)).astype(np.float16) for name in ("x", "b")}
    model = npu_model("MatMul", given, {"y": TensorProto.FLOAT16})
    product = model.graph.node[0]
    product.domain = ""
    product.attribute.append(helper.make_attribute("transA", trans_a))
    product.attribute.append(helper.make_attribute("transB", trans_b))
    (y,) = run(expand_npu_ops(model), given)
    a, b = (
        given[name].astype(np.float64).transpose(0, 1, *((3, 2) if turned else (2, 3)))
        for name, turned in (("x", trans_a), ("b", trans_b))
    )
    np.testing.assert_allclose(y, a @ b, rtol=1e-3, atol=1e-3)
