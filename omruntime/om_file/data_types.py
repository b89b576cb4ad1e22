"""GE's numbers for element types and layouts, as the flat descriptions use them.

ModelDef, a protobuf, counts its types in another way; its table stands in `model_def.py`.

Source: hicann/ge inc/graph_metadef/external/graph/types.h, enums DataType and Format.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import DTypeLike


class DataType(IntEnum):
    """Element types; the names are NumPy's where it has the type."""

    FLOAT32 = 0
    FLOAT16 = 1
    INT8 = 2
    INT32 = 3
    UINT8 = 4
    INT16 = 6
    UINT16 = 7
    UINT32 = 8
    INT64 = 9
    UINT64 = 10
    FLOAT64 = 11
    BOOL = 12
    BFLOAT16 = 27

    @property
    def label(self) -> str:
        """Such as `float16`."""
        return self.name.lower()

    @staticmethod
    def of_numpy(dtype: DTypeLike) -> DataType:
        """The number of a NumPy type; KeyError when GE has none."""
        return DataType[np.dtype(dtype).name.upper()]


class Format(IntEnum):
    """Layouts of a tensor's axes."""

    NCHW = 0
    NHWC = 1
    ND = 2
    NC1HWC0 = 3
    FRACTAL_Z = 4
    FRACTAL_NZ = 29


def data_type_name(number: int) -> str:
    """Such as `float16`; unknown numbers keep showing as numbers."""
    return DataType(number).label if number in set(DataType) else f"dtype {number}"


def format_name(number: int) -> str:
    """Such as `ND`; unknown numbers keep showing as numbers."""
    return Format(number).name if number in set(Format) else f"format {number}"
