"""Element types of tensors, by name, as NumPy stores them.

NumPy has no bfloat16: such values lie in memory as uint16, their bit patterns, and nothing here
computes with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

BFLOAT16 = "bfloat16"


def storage_dtype(name: str) -> np.dtype[Any]:
    """What holds elements of the named type."""
    return np.dtype(np.uint16 if name == BFLOAT16 else name)


def item_bytes(name: str) -> int:
    """Bytes of one element of the named type."""
    return storage_dtype(name).itemsize
