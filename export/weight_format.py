"""WeightFormat: how a bundle for the host's cores keeps the model's matrices, by name.

The rounding of each format is `weight_rounding.py`; this is read without torch.
"""

from __future__ import annotations

from enum import Enum


class WeightFormat(Enum):
    """What a matrix's elements are in the bundle; vectors stay float32.

    All but FLOAT32 keep the cache in bfloat16 and run on the `openvino` device.

    FLOAT32: as the checkpoint computes in transformers.
    BFLOAT16: rounded to the nearest; the device computes in bfloat16.
    INT8: whole numbers of -127 to 127 and one float32 scale for each output of a product (each
        token of an embedding); the device computes in float32.
    """

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
