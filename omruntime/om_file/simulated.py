"""The program inside of a simulated OM, which `simatc` writes and the simulated device runs.

A simulated OM is an OM like any other, but for its name, which begins with `simatc`, and its
WEIGHTS_DATA, which holds an ONNX program instead of constants for an AI Core:

    8 bytes "OMSIMPRG", u32 version, u32 index_bytes, u64 model_bytes,
    index (JSON), ONNX model, then the constants, each part from a multiple of 64 on.

The ONNX model is small: its constants above a kilobyte are external (location `weights`), and the
index says of each where it lies, from the start of the constants or in a file beside the OM. So
the model fits into a protobuf whatever the weights take, and an ONNX Runtime session gets them by
name (`SessionOptions.add_external_initializers`) as views of the mapped file.

Owns the layout alone. Nothing here runs on a device: ATC's own OMs are refused, as a real device
would refuse these.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omruntime.errors import BundleError
from omruntime.om_file.byte_cursor import ByteCursor
from omruntime.om_file.container import OmFile
from omruntime.om_file.partitions import PartitionType

NAME_PREFIX = "simatc"
# What the model's external tensors give as their location.
WEIGHTS_LOCATION = "weights"
_MAGIC = b"OMSIMPRG"
_VERSION = 1
_HEAD = struct.Struct("<8sIIQ")
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class SimulatedWeight:
    """One constant of the program.

    Attributes:
        name: Of the ONNX initializer.
        dtype: As NumPy names it.
        file: Path relative to the OM's folder; empty when it lies inside of the OM.
        offset: In bytes, from the start of the file or of the program's constants.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int

    @property
    def size_bytes(self) -> int:
        """Bytes without padding."""
        return int(np.prod(self.shape, dtype=object)) * np.dtype(self.dtype).itemsize

    def array(self, data: memoryview) -> NDArray[Any]:
        """A read-only view of the constant in the bytes of its file, or of the constants.

        Raises:
            BundleError: It reaches beyond them.
        """
        end = self.offset + self.size_bytes
        if not 0 <= self.offset <= end <= len(data):
            raise BundleError(
                f"constant {self.name}: got bytes {self.offset} to {end}, but there are {len(data)}"
            )
        view = np.frombuffer(data[self.offset : end], self.dtype).reshape(self.shape)
        view.flags.writeable = False
        return view


@dataclass(frozen=True, slots=True)
class SimulatedProgram:
    """What a simulated OM runs.

    Attributes:
        model: A serialized ONNX model without npu operators. Its inputs and outputs have the
            names and the order of the OM's, without the gear input; axes that a gear decides are
            symbolic, all others fixed.
        constants: Bytes that weights without a file point into.
    """

    model: memoryview
    weights: tuple[SimulatedWeight, ...]
    constants: memoryview

    @staticmethod
    def read(om: OmFile) -> SimulatedProgram:
        """The program of a simulated OM.

        Raises:
            BundleError: It is not a simulated one, or damaged.
        """
        if not om.header.name.startswith(NAME_PREFIX):
            raise BundleError(
                f"the OM {om.header.name!r} was compiled for a real device; the simulator only "
                f"runs what simatc made"
            )
        data = om.blocks[0].partitions.get(PartitionType.WEIGHTS_DATA) if om.blocks else None
        if data is None:
            raise BundleError(f"the simulated OM {om.header.name!r} holds no program")
        offset = om.blocks[0].partition_offset(PartitionType.WEIGHTS_DATA)
        return _parse(ByteCursor(data, offset, "simulated program"))


def _parse(cursor: ByteCursor) -> SimulatedProgram:
    start = cursor.offset
    magic, version, index_bytes, model_bytes = _HEAD.unpack(cursor.take(_HEAD.size, "its head"))
    if (magic, version) != (_MAGIC, _VERSION):
        raise BundleError(
            f"simulated program, offset {start}: got {magic!r} version {version}, wanted "
            f"{_MAGIC!r} version {_VERSION}; compile it again with this omserve"
        )
    index = bytes(cursor.take(index_bytes, "its index"))
    cursor.take(-(cursor.offset - start) % ALIGNMENT, "padding")
    model = cursor.take(model_bytes, "the ONNX model")
    cursor.take(-(cursor.offset - start) % ALIGNMENT, "padding")
    return SimulatedProgram(model, _parse_index(index), cursor.take(cursor.num_left, "constants"))


def _parse_index(text: bytes) -> tuple[SimulatedWeight, ...]:
    try:
        rows = json.loads(text)
        weights = tuple(_weight(row) for row in rows)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise BundleError(f"simulated program: cannot read its index: {error}") from error
    return weights


def _weight(row: dict[str, Any]) -> SimulatedWeight:
    shape = tuple(int(size) for size in row["shape"])
    dtype = np.dtype(str(row["dtype"]))
    if dtype.hasobject or any(size < 0 for size in shape):
        raise ValueError(f"got the constant {row}")
    return SimulatedWeight(
        str(row["name"]), dtype.name, shape, str(row["file"]), int(row["offset"])
    )


def pack_simulated_program(
    model: bytes,
    weights: Iterable[SimulatedWeight],
    constants: Iterable[bytes | memoryview],
) -> tuple[bytes | memoryview, ...]:
    """The partition in chunks; `constants` in the order and places that `weights` say."""
    rows = [asdict(weight) for weight in weights]
    index = json.dumps(rows, sort_keys=True, separators=(",", ":")).encode()
    head = _HEAD.pack(_MAGIC, _VERSION, len(index), len(model)) + index
    head += bytes(-len(head) % ALIGNMENT)
    return head, model, bytes(-len(model) % ALIGNMENT), *constants
