"""What a weight format makes of a matrix.

Owns the rounding. Where the numbers stand in a graph is `lower_openvino.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from export.weight_format import WeightFormat

_INT8_MOST = 127


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """A matrix as INT8 keeps it.

    Attributes:
        values: int8, the matrix's shape.
        scales: float32, one for each index of the kept axis.
    """

    values: Tensor
    scales: Tensor


def to_int8(matrix: Tensor, kept_axis: int) -> Int8Matrix:
    """The nearest whole numbers, the largest of every slice along `kept_axis` being 127.

    Args:
        matrix: float32 [two axes].
    """
    other = 1 - kept_axis
    largest = matrix.abs().amax(other, keepdim=True)
    scales = torch.where(largest > 0, largest / _INT8_MOST, torch.ones_like(largest))
    values = torch.round(matrix / scales).to(torch.int8)
    return Int8Matrix(values, scales.squeeze(other))


def as_stored(matrix: Tensor, weights: WeightFormat, kept_axis: int) -> Tensor:
    """A float32 matrix after a round trip through a format."""
    if weights is WeightFormat.INT8 and matrix.ndim == 2:
        stored = to_int8(matrix, kept_axis)
        return stored.values * stored.scales.unsqueeze(1 - kept_axis)
    if weights is WeightFormat.FLOAT32:
        return matrix
    return matrix.to(torch.bfloat16).to(matrix.dtype)
