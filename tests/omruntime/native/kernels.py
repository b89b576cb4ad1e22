"""What tests of the native kernels share: a program of one kernel, and the marks of a build."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omruntime.native import Matrix, NativeProgram, ThreadPool, find_library

needs_library = pytest.mark.skipif(
    find_library() is None,
    reason="the native kernels are not compiled: python setup.py build_ext --inplace",
)


def run_kernel(
    kernel: str,
    operands: Sequence[NDArray[Any] | Matrix | None],
    numbers: Sequence[float] = (),
    num_threads: int = 2,
) -> None:
    """Run one kernel over operands; what it writes is among them."""
    pool = ThreadPool(num_threads)
    program = NativeProgram()
    program.append(kernel, operands, numbers)
    program.run(pool)
    pool.close()


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of values that bfloat16 holds exactly, cut off."""
    return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)


def from_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The values of bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
