"""Programs, matrices and thread pools of the native library as Python objects.

Owns their lifetimes, and how an array becomes a tensor. Nothing here copies an array: a program
reads and writes the memory of the arrays that it was given, and keeps them alive.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from ctypes import POINTER, byref, c_double, c_float, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omruntime.errors import DeviceError
from omruntime.native.library import MAX_RANK, CTensor, load_library

# As native.h numbers them; bfloat16 has no NumPy type of its own, its bits are uint16.
_DTYPES = {
    np.dtype(np.float32): 0,
    np.dtype(np.uint16): 1,
    np.dtype(np.int8): 2,
    np.dtype(np.int32): 3,
    np.dtype(np.int64): 4,
    np.dtype(np.bool_): 5,
}
_MATRIX = 6


class ThreadPool:
    """Threads that run programs; used from one thread at a time."""

    def __init__(self, num_threads: int) -> None:
        self.handle: int | None = None
        self._library = load_library()
        self.handle = self._library.om_pool_new(num_threads)
        self._owner_pid = os.getpid()

    def close(self) -> None:
        """End the threads; repeating it is harmless."""
        handle, self.handle = self.handle, None
        # A forked child has the object and none of its threads, which it would wait for for ever.
        if handle is not None and os.getpid() == self._owner_pid:
            self._library.om_pool_free(handle)

    def __del__(self) -> None:
        self.close()


class Matrix:
    """A constant matrix, packed for products; a copy of what it was made of."""

    def __init__(self, values: NDArray[Any], scales: NDArray[np.float32] | None = None) -> None:
        """Pack a matrix.

        Args:
            values: float32, uint16 (the bits of bfloat16) or int8, [inputs, outputs], any strides.
            scales: float32 [outputs], what each output is multiplied by.

        Raises:
            DeviceError: Another type, or memory is short.
        """
        self.shape: tuple[int, ...] = values.shape
        self.handle: int | None = None
        self._library = load_library()
        handle, pointer = c_void_p(), None
        if scales is not None:
            wide = np.ascontiguousarray(scales, np.float32)
            if wide.shape != values.shape[1:]:
                raise DeviceError(f"native: got scales {wide.shape}, wanted {values.shape[1:]}")
            pointer = wide.ctypes.data_as(POINTER(c_float))
        _check(self._library.om_matrix_pack(byref(_tensor(values)), pointer, byref(handle)))
        self.handle = handle.value

    def __del__(self) -> None:
        if self.handle is not None:
            self._library.om_matrix_free(self.handle)


Operand = NDArray[Any] | Matrix | None


class NativeProgram:
    """Kernels over fixed arrays, in the order in which they were appended."""

    def __init__(self) -> None:
        self._handle: int | None = None
        self._library = load_library()
        self._handle = self._library.om_program_new()
        self._operands: list[Sequence[Operand]] = []

    def append(
        self, kernel: str, operands: Sequence[Operand], numbers: Sequence[float] = ()
    ) -> None:
        """Add a kernel; what it takes is described in the kernel's own file.

        Args:
            operands: Arrays, packed matrices, or None for one that is left out.

        Raises:
            DeviceError: There is no such kernel, or it does not take these operands.
        """
        tensors = (CTensor * len(operands))(*(_tensor(operand) for operand in operands))
        parameters = (c_double * len(numbers))(*numbers)
        _check(
            self._library.om_program_append(
                self._handle, kernel.encode(), tensors, len(operands), parameters, len(numbers)
            )
        )
        self._operands.append(operands)

    def run(self, pool: ThreadPool) -> None:
        """Run all kernels, without the interpreter's lock; done when it returns.

        Raises:
            DeviceError: The pool is closed.
        """
        if pool.handle is None:
            raise DeviceError("native: the threads have ended, so nothing runs any more")
        self._library.om_program_run(self._handle, pool.handle)

    def __del__(self) -> None:
        if self._handle is not None:
            self._library.om_program_free(self._handle)


def _tensor(operand: Operand) -> CTensor:
    tensor = CTensor()
    if operand is None:
        return tensor
    rank = len(operand.shape)
    if rank > MAX_RANK:
        raise DeviceError(f"native: got a tensor of rank {rank}, wanted at most {MAX_RANK}")
    tensor.rank = rank
    tensor.shape[:rank] = operand.shape
    if isinstance(operand, Matrix):
        tensor.data, tensor.dtype = operand.handle, _MATRIX
        return tensor
    dtype = _DTYPES.get(operand.dtype)
    if dtype is None:
        known = ", ".join(str(each) for each in _DTYPES)
        raise DeviceError(f"native: got {operand.dtype}, wanted one of {known}")
    tensor.data, tensor.dtype = operand.ctypes.data, dtype
    tensor.strides[:rank] = [stride // operand.itemsize for stride in operand.strides]
    return tensor


def _check(error: bytes | None) -> None:
    if error is not None:
        raise DeviceError(f"native: {error.decode()}")
