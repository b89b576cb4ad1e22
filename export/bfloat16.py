"""bfloat16 as bit patterns: NumPy has no such type."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def to_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The nearest bfloat16 of each finite value, ties to even, as its bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def from_bits(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The values of bfloat16 bit patterns; exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
