"""Bench: what a probe works with."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atc_pipeline.probe.card import Card, load_file
from atc_pipeline.probe.compiler import Compiler
from atc_pipeline.probe.loaded_om import LoadedOm
from omruntime.errors import DeviceError

# Config handle, file name, device address, size; returns the status.
SetExternalWeight = Callable[[int, str, int, int], int]


@dataclass(frozen=True, slots=True)
class Bench:
    """A compiler and a card.

    Attributes:
        set_external_weight: aclmdlSetExternalWeightAddress, which pyACL does not wrap.
        large_pool_slots: Rows of 64 float16 of the pool that passes 2**31 elements.
    """

    compiler: Compiler
    card: Card
    set_external_weight: SetExternalWeight
    large_pool_slots: int = (1 << 25) + 1024

    def load(self, om: Path) -> LoadedOm:
        """Load an OM with its buffers; close it."""
        return LoadedOm(self.card, load_file(self.card, om))


def set_external_weight_by_ctypes(handle: int, name: str, address: int, size: int) -> int:
    """Call aclmdlSetExternalWeightAddress in the library that pyACL has loaded.

    Raises:
        DeviceError: The library or the function is not there: CANN before 8.5.0.

    Source: hicann/ge docs/zh/api/graph_engine_api/c/acl/aclmdlSetExternalWeightAddress.md.
    """
    try:
        function = ctypes.CDLL("libascendcl.so").aclmdlSetExternalWeightAddress
    except (OSError, AttributeError) as error:
        raise DeviceError(f"no aclmdlSetExternalWeightAddress: {error}") from error
    function.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]
    function.restype = ctypes.c_int
    return int(function(handle, name.encode(), address, size))
