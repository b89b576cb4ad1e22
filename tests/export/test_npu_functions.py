"""The npu operators' reference definitions, held against NumPy in float64."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

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
