"""The constants of a program: which of them lie outside of the ONNX model, and where.

Owns their places in the OM or in files beside it, and the files. Bytes are views of the mapped
weight file, so they never lie in memory as a whole.

Source: hicann/ge base/common/file_constant_utils (names and layout of --external_weight).
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from onnx import GraphProto, TensorProto, helper, numpy_helper

from atc_pipeline.simatc.refusal import AtcRefusalError, NotSimulatedError
from omruntime.om_file.simulated import ALIGNMENT, WEIGHTS_LOCATION, SimulatedWeight

# Smaller ones are shapes, axes and limits, which ONNX Runtime wants inside of the model.
_LEAST_OUTSIDE_BYTES = 1024
_FOLDER = "weight"
_COMBINED_ALIGNMENT = 512


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant outside of the ONNX model."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True, slots=True)
class PlacedConstants:
    """Constants with their places.

    Attributes:
        inside: The bytes for the OM, with padding.
        files: The files beside the OM, as chunks by relative path.
    """

    weights: tuple[SimulatedWeight, ...]
    inside: tuple[bytes | memoryview, ...]
    files: dict[str, tuple[bytes | memoryview, ...]]


def take_constants(graph: GraphProto, folder: Path) -> list[Constant]:
    """Take large initializers out of a graph; what stays of them is a reference by name.

    Args:
        folder: Of the ONNX file, which external data is relative to.

    Raises:
        AtcRefusalError: External data is missing or too short.
        NotSimulatedError: A type that NumPy lacks, such as bfloat16.
    """
    mapped: dict[str, memoryview] = {}
    found = []
    for tensor in graph.initializer:
        is_outside = tensor.data_location == TensorProto.EXTERNAL
        if is_outside or _size_bytes(tensor) >= _LEAST_OUTSIDE_BYTES:
            dtype = _numpy_type(tensor)
            data = _external(tensor, folder, mapped) if is_outside else _inline(tensor)
            found.append(Constant(tensor.name, dtype.name, tuple(tensor.dims), data))
            _refer(tensor, len(data))
    return found


def place_constants(
    constants: Iterable[Constant], external_weight: int, om_name: str
) -> PlacedConstants:
    """Decide where each constant lies.

    Args:
        external_weight: 0 in the OM, 1 a file for each distinct content, 2 one file.
    """
    if external_weight == 1:
        return _in_files(constants)
    file = f"{om_name}_weight_combined" if external_weight else ""
    step = _COMBINED_ALIGNMENT if external_weight else ALIGNMENT
    weights, chunks, at = [], list[bytes | memoryview](), 0
    for constant in constants:
        padding = -at % step
        weights.append(_placed(constant, file, at + padding))
        chunks += [bytes(padding), constant.data]
        at += padding + len(constant.data)
    if file:
        return PlacedConstants(tuple(weights), (), {file: tuple(chunks)})
    return PlacedConstants(tuple(weights), tuple(chunks), {})


def write_files(placed: PlacedConstants, folder: Path) -> None:
    """Write the files beside the OM; a hash-named one that is there is left alone."""
    for relative, chunks in placed.files.items():
        path = folder / relative
        is_there = relative.startswith(f"{_FOLDER}/") and path.is_file()
        if is_there and path.stat().st_size == sum(len(chunk) for chunk in chunks):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.writelines(chunks)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its name when it is complete; several runs may write it at once."""
    unfinished = path.with_name(f".{path.name[:200]}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            yield file
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _in_files(constants: Iterable[Constant]) -> PlacedConstants:
    weights, files = [], dict[str, tuple[bytes | memoryview, ...]]()
    for constant in constants:
        digest = hashlib.sha256(constant.data).digest()
        # Without zero padding of single bytes, as atc writes it.
        file = f"{_FOLDER}/weight_" + "".join(f"{byte:x}" for byte in digest)
        files[file] = (constant.data,)
        weights.append(_placed(constant, file, 0))
    return PlacedConstants(tuple(weights), (), files)


def _placed(constant: Constant, file: str, offset: int) -> SimulatedWeight:
    return SimulatedWeight(constant.name, constant.dtype, constant.shape, file, offset)


def _size_bytes(tensor: TensorProto) -> int:
    itemsize = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return int(np.prod(tensor.dims, dtype=object)) * int(itemsize)


def _numpy_type(tensor: TensorProto) -> np.dtype[np.generic]:
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    if dtype.isbuiltin != 1:
        raise NotSimulatedError(f"tensor {tensor.name!r}: the type {dtype.name} is not simulated")
    return dtype


def _inline(tensor: TensorProto) -> memoryview:
    if tensor.HasField("raw_data"):
        return memoryview(tensor.raw_data)
    return memoryview(numpy_helper.to_array(tensor).tobytes())


def _external(tensor: TensorProto, folder: Path, mapped: dict[str, memoryview]) -> memoryview:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location, start = entries["location"], int(entries.get("offset", 0))
    if location not in mapped:
        mapped[location] = _map(folder / location, tensor.name)
    whole = mapped[location]
    size = int(entries["length"]) if "length" in entries else len(whole) - start
    if size != _size_bytes(tensor) or start + size > len(whole):
        raise AtcRefusalError(
            "E13003",
            f"tensor {tensor.name!r}: external data {location!r} has {len(whole)} bytes, wanted "
            f"{_size_bytes(tensor)} from {start} on, of {size} named",
        )
    return whole[start : start + size]


def _map(path: Path, name: str) -> memoryview:
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise AtcRefusalError("E13001", f"tensor {name!r}: cannot open {path}: {error}") from error


def _refer(tensor: TensorProto, size_bytes: int) -> None:
    """Leave a reference whose bytes the session gets by name."""
    _clear(tensor)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (
        ("location", WEIGHTS_LOCATION),
        ("offset", "0"),
        ("length", str(size_bytes)),
    ):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


def _clear(tensor: TensorProto) -> None:
    for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data"):
        tensor.ClearField(field)
    tensor.ClearField("uint64_data")
    tensor.ClearField("external_data")
