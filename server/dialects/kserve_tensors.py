"""Tensors of the KServe dialect: typed or raw contents to Python values and back."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from omruntime.errors import NotBuiltInError, RequestError

TensorValue = bytes | int | float | bool

# Datatype to numpy's little-endian type and the field of InferTensorContents.
_FIXED = {
    "BOOL": ("?", "bool_contents"),
    "INT32": ("<i4", "int_contents"),
    "INT64": ("<i8", "int64_contents"),
    "UINT32": ("<u4", "uint_contents"),
    "UINT64": ("<u8", "uint64_contents"),
    "FP32": ("<f4", "fp32_contents"),
    "FP64": ("<f8", "fp64_contents"),
}

# No input has more than one; so many are refused by their shape, more before they are read.
MAX_STRINGS = 1000


@dataclass(frozen=True, slots=True)
class Tensor:
    """One named tensor; its values in row-major order."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: tuple[TensorValue, ...]


def tensors_from(request: Any) -> dict[str, Tensor]:
    """Read all inputs of a ModelInferRequest.

    Raises:
        RequestError: Contents do not fit name, datatype or shape.
        NotBuiltInError: An input lies in shared memory, or has a datatype that no input takes.
    """
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise RequestError(
            f"raw_input_contents has {len(raw)} entries for {len(request.inputs)} inputs; send "
            f"all inputs raw, or none"
        )
    found: dict[str, Tensor] = {}
    for number, message in enumerate(request.inputs):
        if message.parameters:
            names = ", ".join(sorted(message.parameters))
            raise NotBuiltInError(
                f"input {message.name!r} has the parameters {names}, which are not built in, "
                f"shared memory neither; send the contents in the request"
            )
        if message.name in found:
            raise RequestError(f"input {message.name!r} is given twice; send it once")
        if raw and message.HasField("contents"):
            raise RequestError(f"input {message.name!r} has raw and typed contents; send one")
        values = _raw_values(message, raw[number]) if raw else _typed_values(message)
        found[message.name] = _checked(message, values)
    return found


def _checked(message: Any, values: Sequence[TensorValue]) -> Tensor:
    shape = tuple(message.shape)
    if any(size < 0 for size in shape) or math.prod(shape) != len(values):
        raise RequestError(
            f"input {message.name!r} has {len(values)} values for shape {list(shape)}; send as "
            f"many as the shape says"
        )
    return Tensor(message.name, message.datatype, shape, tuple(values))


def _typed_values(message: Any) -> Sequence[TensorValue]:
    wanted = "bytes_contents" if message.datatype == "BYTES" else _fixed(message)[1]
    for descriptor, _ in message.contents.ListFields():
        if descriptor.name != wanted:
            raise RequestError(
                f"input {message.name!r} of {message.datatype} has {descriptor.name}, wanted "
                f"{wanted}"
            )
    return tuple(getattr(message.contents, wanted))


def _raw_values(message: Any, raw: bytes) -> Sequence[TensorValue]:
    if message.datatype == "BYTES":
        return _raw_strings(message.name, raw)
    dtype = np.dtype(_fixed(message)[0])
    if len(raw) % dtype.itemsize:
        raise RequestError(
            f"input {message.name!r} of {message.datatype} has {len(raw)} bytes, wanted a "
            f"multiple of {dtype.itemsize}"
        )
    values: list[TensorValue] = np.frombuffer(raw, dtype).tolist()
    return values


def _fixed(message: Any) -> tuple[str, str]:
    known = _FIXED.get(message.datatype)
    if known is None:
        raise NotBuiltInError(
            f"input {message.name!r} has datatype {message.datatype[:40]!r}, wanted BYTES or one "
            f"of {', '.join(_FIXED)}"
        )
    return known


def _raw_strings(name: str, raw: bytes) -> list[TensorValue]:
    """Each string follows its length, 4 bytes little-endian."""
    strings: list[TensorValue] = []
    at = 0
    while at < len(raw):
        end = at + 4
        if end <= len(raw):
            end += struct.unpack_from("<I", raw, at)[0]
        if at + 4 > len(raw) or end > len(raw):
            raise RequestError(
                f"input {name!r} ends inside of a string at byte {at} of {len(raw)}; put each "
                f"string behind its length, 4 bytes little-endian"
            )
        if len(strings) == MAX_STRINGS:
            raise RequestError(
                f"input {name!r} holds more than {MAX_STRINGS:,} strings; send one prompt a request"
            )
        strings.append(raw[at + 4 : end])
        at = end
    return strings


def add_tensor(response: Any, name: str, datatype: str, values: Sequence[TensorValue]) -> None:
    """Append a one-dimensional output in raw form to a ModelInferResponse."""
    response.outputs.add(name=name, datatype=datatype, shape=[len(values)])
    if datatype == "BYTES":
        parts = [value for value in values if isinstance(value, bytes)]
        raw = b"".join(struct.pack("<I", len(part)) + part for part in parts)
    else:
        raw = np.array(values, _FIXED[datatype][0]).tobytes()
    response.raw_output_contents.append(raw)
