"""acl.util: addresses of Python objects.

Source: hicann/runtime python/pyACL/util/numpy_convert.cpp, util/bytes_convert.cpp.
"""

from __future__ import annotations

import ctypes
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omruntime.device.simacl.errors import UndefinedBehaviourError
from omruntime.device.simacl.memory import Place
from omruntime.device.simacl.state import Calls, State

_NPY_TYPES = {
    0: "bool",
    1: "int8",
    2: "uint8",
    3: "int16",
    4: "uint16",
    5: "int32",
    6: "uint32",
    7: "int64",
    8: "uint64",
    11: "float32",
    12: "float64",
    23: "float16",
}


def bytes_to_ptr(state: State, data: object) -> int:
    """See acl.util.bytes_to_ptr: valid while the bytes object lives."""
    if not isinstance(data, bytes):
        raise ValueError(f"acl.util.bytes_to_ptr wants bytes, got {type(data).__name__}")
    address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
    state.addresses.host.borrow(data, address, len(data))
    return address


def numpy_to_ptr(state: State, array: object) -> int:
    """See acl.util.numpy_to_ptr: no reference is kept."""
    _warn_deprecated("numpy_to_ptr")
    checked = _array(array, "numpy_to_ptr")
    if not checked.flags.c_contiguous:
        raise UndefinedBehaviourError(
            "numpy_to_ptr of a discontiguous array: a copy would move the wrong bytes"
        )
    state.addresses.host.borrow(checked, checked.ctypes.data, checked.nbytes)
    return checked.ctypes.data


def numpy_contiguous_to_ptr(state: State, array: object) -> tuple[int, NDArray[Any]]:
    """See acl.util.numpy_contiguous_to_ptr: keep the returned array alive."""
    _warn_deprecated("numpy_contiguous_to_ptr")
    contiguous = np.ascontiguousarray(_array(array, "numpy_contiguous_to_ptr"))
    address = contiguous.ctypes.data
    state.addresses.host.borrow(contiguous, address, contiguous.nbytes)
    return address, contiguous


def ptr_to_numpy(state: State, address: int, shape: object, npy_type: int) -> NDArray[Any]:
    """See acl.util.ptr_to_numpy: an array over the memory, which it does not own."""
    _warn_deprecated("ptr_to_numpy")
    if not isinstance(shape, tuple) or npy_type not in _NPY_TYPES:
        raise TypeError("acl.util.ptr_to_numpy args parse failed")
    dtype = np.dtype(_NPY_TYPES[npy_type])
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    region = state.addresses.region(address, nbytes, "ptr_to_numpy")
    if region.place is Place.DEVICE:
        raise UndefinedBehaviourError("ptr_to_numpy of device memory: the host cannot read it")
    return region.content.view(dtype).reshape(shape)


def ptr_to_bytes(state: State, address: int, size: int) -> bytes:
    """See acl.util.ptr_to_bytes: a copy."""
    region = state.addresses.region(address, size, "ptr_to_bytes")
    if region.place is Place.DEVICE:
        raise UndefinedBehaviourError("ptr_to_bytes of device memory: the host cannot read it")
    return region.content.tobytes()


def _array(array: object, name: str) -> NDArray[Any]:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"acl.util.{name} args parse failed")
    return array


def _warn_deprecated(name: str) -> None:
    warnings.warn(f"acl.util.{name} is deprecated", DeprecationWarning, stacklevel=5)


CALLS: Calls = {
    "util.bytes_to_ptr": bytes_to_ptr,
    "util.numpy_to_ptr": numpy_to_ptr,
    "util.numpy_contiguous_to_ptr": numpy_contiguous_to_ptr,
    "util.ptr_to_numpy": ptr_to_numpy,
    "util.ptr_to_bytes": ptr_to_bytes,
}
