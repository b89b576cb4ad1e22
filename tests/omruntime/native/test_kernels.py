"""The kernels beside products and attention, against NumPy, over strides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from omruntime.errors import DeviceError
from omruntime.native import NativeProgram
from tests.omruntime.native.kernels import from_bfloat16, needs_library, run_kernel

pytestmark = needs_library

ROWS, WIDTH = 37, 45


def strided(seed: int, rows: int = ROWS, width: int = WIDTH) -> NDArray[np.float32]:
    """Random rows that lie apart."""
    whole = np.random.default_rng(seed).standard_normal((rows, width + 5)).astype(np.float32)
    return whole[:, 2 : width + 2]


def test_norms() -> None:
    x, weight, bias = strided(0) * 3 + 1, strided(1, 1)[0], strided(2, 1)[0]
    y = np.empty_like(x)
    run_kernel("rms_norm", [x, weight, y], [1e-5])
    wide = x.astype(np.float64)
    rms = np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, wide / rms * weight, atol=1e-5)
    run_kernel("layer_norm", [x, weight, bias, y], [1e-5])
    centred = wide - wide.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, centred / deviation * weight + bias, atol=1e-5)


def test_a_norm_of_heads_that_lie_apart() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 16)).astype(np.float32)
    turned, y = x.transpose(0, 2, 1, 3), np.empty((2, 4, 3, 16), np.float32)
    run_kernel("rms_norm", [turned, np.ones(16, np.float32), y], [0.0])
    np.testing.assert_allclose((y**2).mean(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(y / y[..., :1], turned / turned[..., :1], rtol=1e-4)


def test_rotary() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5, 3, 16)).astype(np.float32).transpose(0, 2, 1, 3)
    ids = rng.integers(0, 9, (2, 5))
    angles = rng.standard_normal((9, 8))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    y = np.empty(x.shape, np.float32)
    run_kernel("rotary", [x, ids, cos, sin, y])
    c, s = (np.concatenate([t[ids]] * 2, -1)[:, None] for t in (cos, sin))
    turned = np.concatenate([-x[..., 8:], x[..., :8]], -1)
    np.testing.assert_allclose(y, x * c + turned * s, atol=1e-6)


@given(rows=st.integers(1, 9), width=st.integers(1, 40))
@settings(max_examples=20)
def test_functions_of_one_value(rows: int, width: int) -> None:
    x = strided(0, rows, width) * 8
    y = np.empty((rows, width), np.float32)
    for kernel, function in (
        ("cos", np.cos),
        ("sin", np.sin),
        ("neg", np.negative),
        ("tanh", np.tanh),
        ("sigmoid", lambda v: 1 / (1 + np.exp(-v))),
    ):
        run_kernel(kernel, [x, y])
        np.testing.assert_allclose(y, function(x.astype(np.float64)), atol=3e-7, rtol=3e-6)


@pytest.mark.parametrize("kernel", ["cos", "sin", "neg", "sigmoid", "tanh", "softmax"])
def test_what_is_no_number_stays_none(kernel: str) -> None:
    """The engine ends a request whose logits are none, so none may get lost on the way."""
    x = np.zeros((1, WIDTH), np.float32)
    x[0, 3] = np.nan
    y = np.empty_like(x)
    run_kernel(kernel, [x, y])
    assert np.isnan(y[0, 3])


def test_sigmoid_and_tanh_of_extremes() -> None:
    x = np.array([[-np.inf, -1e30, -200, -88, 0, 88, 200, 1e30, np.inf]], np.float32)
    y = np.empty_like(x)
    run_kernel("sigmoid", [x, y])
    np.testing.assert_allclose(y, [[0, 0, 0, 0, 0.5, 1, 1, 1, 1]], atol=1e-30)
    run_kernel("tanh", [x, y])
    np.testing.assert_allclose(y, [[-1, -1, -1, -1, 0, 1, 1, 1, 1]], atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
@pytest.mark.parametrize("shape", [(ROWS, WIDTH), (1, WIDTH), (ROWS, 1), (1, 1)])
def test_functions_of_two_values(dtype: type[np.generic], shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(1, 50, (ROWS, WIDTH)).astype(dtype)
    z = np.broadcast_to(rng.integers(1, 4, shape).astype(dtype), (ROWS, WIDTH))
    y = np.empty_like(x)
    for kernel, function in (
        ("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("pow", np.power),
    ):  # fmt: skip
        run_kernel(kernel, [x, z, y])
        np.testing.assert_array_equal(y, function(x, z))
    run_kernel("div", [x, z, y])
    np.testing.assert_allclose(y, x / z if dtype is np.float32 else x // z)


def test_a_gated_unit() -> None:
    both = strided(0, ROWS, 2 * WIDTH) * 4
    gate, up = both[:, :WIDTH], both[:, WIDTH:]
    y = np.empty((ROWS, WIDTH), np.float32)
    run_kernel("silu_mul", [gate, up, y])
    np.testing.assert_allclose(y, gate / (1 + np.exp(-gate)) * up, rtol=1e-5, atol=1e-6)


def test_bfloat16_is_rounded_to_the_nearest_even() -> None:
    x = np.array([[1.0, 1.00390625, 1.01171875, -2.5, np.inf, np.nan, 3e38]], np.float32)
    bits = np.empty(x.shape, np.uint16)
    run_kernel("cast", [x, bits])
    wide = np.empty_like(x)
    run_kernel("cast", [bits, wide])
    np.testing.assert_array_equal(wide, from_bfloat16(bits))
    np.testing.assert_array_equal(wide[0, :6], np.float32([1, 1, 1.015625, -2.5, np.inf, np.nan]))


@pytest.mark.parametrize(
    ("source", "target"),
    [("float32", "float32"), ("int8", "float32"), ("int32", "float32"), ("int32", "int64"),
     ("int32", "int32"), ("int64", "int64"), ("int64", "int32")],
)  # fmt: skip
def test_a_cast_copies_over_strides(source: str, target: str) -> None:
    x = np.arange(24).reshape(2, 3, 4).astype(source).transpose(2, 0, 1)
    whole = np.zeros((4, 2, 6), target)
    run_kernel("cast", [x, whole[..., ::2]])
    np.testing.assert_array_equal(whole[..., ::2], x.astype(target))
    assert (whole[..., 1::2] == 0).all()


@pytest.mark.parametrize("ids_type", [np.int32, np.int64])
def test_gathered_rows(ids_type: type[np.generic]) -> None:
    table = np.arange(60, dtype=np.int8).reshape(10, 6)[:, :5]
    ids = np.array([3, 3, 0, 9, -1], ids_type)
    y = np.empty((5, 5), np.int8)
    run_kernel("gather", [table, ids, y])
    np.testing.assert_array_equal(y, table[ids])


def test_softmax() -> None:
    x, y = strided(0) * 20, np.empty((ROWS, WIDTH), np.float32)
    run_kernel("softmax", [x, y])
    weights = np.exp(x - x.max(-1, keepdims=True))
    np.testing.assert_allclose(y, weights / weights.sum(-1, keepdims=True), atol=1e-6)


@given(width=st.integers(1, 20), data=st.data())
@settings(max_examples=30)
def test_the_first_of_equal_values_is_the_larger(width: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, width))
    x = np.random.default_rng(width).integers(0, 4, (5, width)).astype(np.float32)
    values, indices = np.empty((5, k), np.float32), np.empty((5, k), np.int64)
    run_kernel("top_k", [x, values, indices])
    np.testing.assert_array_equal(indices, np.argsort(-x, axis=-1, kind="stable")[:, :k])
    np.testing.assert_array_equal(values, np.take_along_axis(x, indices, -1))


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
def test_comparisons_and_where(dtype: type[np.generic]) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, (ROWS, WIDTH)).astype(dtype)
    z = np.broadcast_to(rng.integers(0, 3, (ROWS, 1)).astype(dtype), (ROWS, WIDTH))
    is_equal, is_greater = np.empty((2, ROWS, WIDTH), bool)
    run_kernel("equal", [x, z, is_equal])
    run_kernel("greater", [x, z, is_greater])
    np.testing.assert_array_equal(is_equal, x == z)
    np.testing.assert_array_equal(is_greater, x > z)
    a, y = strided(0), np.empty((ROWS, WIDTH), np.float32)
    zero = np.broadcast_to(np.float32(0), y.shape)
    run_kernel("where", [is_equal, a, zero, y])
    np.testing.assert_array_equal(y, np.where(is_equal, a, 0))
    run_kernel("cast", [is_equal, y])
    np.testing.assert_array_equal(y, is_equal)


def test_a_sum_over_an_axis_that_lies_apart() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    y = np.empty((3, 5), np.float32)
    run_kernel("sum", [x.transpose(0, 2, 1), y])
    np.testing.assert_allclose(y, x.sum(1), rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    x, ints = np.ones((2, 4), np.float32), np.ones((2, 4), np.int32)
    for kernel, operands, numbers in (
        ("tanh", [x, ints], []),
        ("tanh", [x[:, ::2], x[:, :2]], []),
        ("add", [x, ints, x], []),
        ("add", [x, x[:1], x], []),
        ("cast", [ints, x.astype(np.int8)], []),
        ("gather", [x, x[0], x], []),
        ("rms_norm", [x, x[0, :3], x], [1e-5]),
        ("rms_norm", [x, x[0], x], []),
        ("layer_norm", [x, x[0], x], [1e-5]),
        ("rotary", [x, ints, x, x, x], []),
        ("silu_mul", [x, x[:, :3], x], []),
        ("attention", [x] * 9, [1, 0, 0]),
        ("softmax", [x, ints], []),
        ("top_k", [x, x, ints], []),
        ("equal", [x, x, x], []),
        ("where", [x, x, x, x], []),
        ("sum", [x, x], []),
    ):
        with pytest.raises(DeviceError, match=r"takes|does not know"):
            NativeProgram().append(kernel, operands, numbers)
