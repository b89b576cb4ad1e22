"""Products: every format, odd sizes, strides and epilogues against NumPy in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from omruntime.errors import DeviceError
from omruntime.native import Matrix, NativeProgram
from tests.omruntime.native.kernels import from_bfloat16, needs_library, run_kernel, to_bfloat16

pytestmark = needs_library


@dataclass(frozen=True)
class Weights:
    """A packed matrix, and the same as NumPy multiplies by it."""

    packed: Matrix
    wide: NDArray[np.float64]


def make_weights(form: str, inputs: int, outputs: int, is_transposed: bool = False) -> Weights:
    rng = np.random.default_rng(inputs * 1000 + outputs)
    shape = (outputs, inputs) if is_transposed else (inputs, outputs)
    values = rng.standard_normal(shape).astype(np.float32)
    values = values.T if is_transposed else values
    if form == "float32":
        return Weights(Matrix(values), values.astype(np.float64))
    if form == "bfloat16":
        bits = to_bfloat16(values)
        return Weights(Matrix(bits), from_bfloat16(bits).astype(np.float64))
    whole = rng.integers(-127, 128, shape).astype(np.int8)
    whole = whole.T if is_transposed else whole
    scales = rng.random(outputs).astype(np.float32)
    return Weights(Matrix(whole, scales), whole.astype(np.float64) * scales)


def check(
    weights: Weights, rows: int, has_bias: bool, has_addend: bool, num_threads: int = 2
) -> None:
    """Rows lie in wider arrays, so strides count; nothing beside them is written."""
    inputs, outputs = weights.wide.shape
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, inputs + 3)).astype(np.float32)[:, :inputs]
    whole = np.full((rows, outputs + 2), 7, np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32) if has_bias else None
    addend = rng.standard_normal((rows, outputs)).astype(np.float32) if has_addend else None
    run_kernel(
        "linear", [x, weights.packed, whole[:, :outputs], bias, addend], num_threads=num_threads
    )
    wanted = x @ weights.wide
    wanted = wanted if bias is None else wanted + bias
    wanted = wanted if addend is None else wanted + addend
    scale = np.abs(x) @ np.abs(weights.wide) + 1
    assert (np.abs(whole[:, :outputs] - wanted) / scale).max() < 2e-6
    assert (whole[:, outputs:] == 7).all()


@given(
    form=st.sampled_from(["float32", "bfloat16", "int8"]),
    inputs=st.integers(1, 600),
    outputs=st.integers(1, 100),
    rows=st.integers(1, 40),
    has_bias=st.booleans(),
    has_addend=st.booleans(),
    is_transposed=st.booleans(),
)
@settings(max_examples=60)
def test_a_product_is_that_of_numpy(
    form: str,
    inputs: int,
    outputs: int,
    rows: int,
    has_bias: bool,
    has_addend: bool,
    is_transposed: bool,
) -> None:
    check(make_weights(form, inputs, outputs, is_transposed), rows, has_bias, has_addend)


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_many_rows_take_several_passes(form: str, num_threads: int) -> None:
    check(make_weights(form, 520, 300), 201, True, True, num_threads)


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
def test_equal_rows_give_equal_results_whatever_their_place(form: str) -> None:
    """An answer does not depend on which row of a step it has."""
    weights = make_weights(form, 300, 40)
    x = np.random.default_rng(0).standard_normal((1, 300)).astype(np.float32)
    for rows in range(2, 34):
        y = np.empty((rows, 40), np.float32)
        run_kernel("linear", [x.repeat(rows, 0), weights.packed, y, None, None])
        assert (y == y[0]).all(), rows


def test_an_addend_may_be_the_result_itself() -> None:
    weights = make_weights("float32", 300, 40)
    x = np.ones((9, 300), np.float32)
    y = np.full((9, 40), 2, np.float32)
    run_kernel("linear", [x, weights.packed, y, None, y])
    np.testing.assert_allclose(y, x @ weights.wide + 2, rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    weights = make_weights("float32", 8, 16)
    x, y = np.ones((2, 8), np.float32), np.ones((2, 16), np.float32)
    program = NativeProgram()
    for operands, problem in (
        ([x[:, :7], weights.packed, y, None, None], "shapes do not fit"),
        ([x[:, ::2], weights.packed, y, None, None], "rows in one piece"),
        ([x.astype(np.int32), weights.packed, y, None, None], "float32 x and y"),
        ([x, y, y, None, None], "packed matrix"),
        ([x, weights.packed, y, np.ones(3, np.float32), None], "bias for each output"),
        ([x, weights.packed, y, None, x], "addend as large as y"),
        ([x, weights.packed, y], "takes x, matrix"),
    ):
        with pytest.raises(DeviceError, match=problem):
            program.append("linear", operands)
    with pytest.raises(DeviceError, match="no kernel einsum"):
        program.append("einsum", [x])
    with pytest.raises(DeviceError, match="float32, bfloat16 or int8"):
        Matrix(np.ones((2, 2), np.int64))
    with pytest.raises(DeviceError, match="rank 2"):
        Matrix(np.ones(2, np.float32))
