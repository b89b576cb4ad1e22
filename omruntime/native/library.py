"""Finds, loads and declares the native library.

Owns the C interface as ctypes sees it, and the refusal where the library was not compiled. A C++
compiler at install time makes it (`setup.py`); it needs no other library and knows no Python, so a
call into it runs without the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from pathlib import Path

from omruntime.errors import ConfigError

ABI_VERSION = 2
MAX_RANK = 6
# As `setup.py` calls it.
_NAME = "libomserve_native.so.1"
_REMEDY = (
    "install a C++17 compiler such as g++ and then omserve again (pip install), or build it in a "
    "source tree with: python setup.py build_ext --inplace"
)


class CTensor(ctypes.Structure):
    """`om_tensor` of native.h."""

    _fields_ = (
        ("data", c_void_p),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("shape", c_int64 * MAX_RANK),
        ("strides", c_int64 * MAX_RANK),
    )


_SIGNATURES = {
    "om_abi_version": ([], c_int32),
    "om_instruction_set": ([], c_char_p),
    "om_choose_instruction_set": ([c_char_p], c_char_p),
    "om_pool_new": ([c_int32], c_void_p),
    "om_pool_free": ([c_void_p], None),
    "om_matrix_pack": ([POINTER(CTensor), POINTER(c_float), POINTER(c_void_p)], c_char_p),
    "om_matrix_free": ([c_void_p], None),
    "om_program_new": ([], c_void_p),
    "om_program_free": ([c_void_p], None),
    "om_program_append": (
        [c_void_p, c_char_p, POINTER(CTensor), c_int32, POINTER(c_double), c_int32],
        c_char_p,
    ),
    "om_program_run": ([c_void_p, c_void_p], None),
    "om_draw_rows": ([c_void_p, c_int64, c_int64, c_void_p], None),
    "om_score_rows": ([c_void_p, c_int64, c_int64, c_void_p], None),
}


def find_library() -> Path | None:
    """The compiled library beside this file, or None where it was not compiled."""
    path = Path(__file__).parent / _NAME
    return path if path.is_file() else None


@functools.cache
def load_library() -> ctypes.CDLL:
    """The library, its functions declared.

    Raises:
        ConfigError: It was not compiled, or is of another version of omserve.
    """
    path = find_library()
    if path is None:
        raise ConfigError(f"omserve's native kernels are not compiled; {_REMEDY}")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ConfigError(f"omserve's native kernels do not load: {error}; {_REMEDY}") from error
    found = library.om_abi_version()
    if found != ABI_VERSION:
        raise ConfigError(
            f"omserve's native kernels have interface {found}, wanted {ABI_VERSION}; {_REMEDY}"
        )
    for name, (arguments, result) in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library
