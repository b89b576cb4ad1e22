"""How many parameters a checkpoint has, from its headers alone, for the estimates of a build.

Owns no judgement: a damaged checkpoint counts as unknown here, and the exporter says what is
wrong with it.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from pathlib import Path, PurePosixPath

SAFETENSORS_INDEX = "model.safetensors.index.json"
# Sizes of the GGUF value types by number; 8 is a string, 9 an array.
_GGUF_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_GGUF_STRING, _GGUF_ARRAY = 8, 9
# Largest header that safetensors itself accepts.
_MAX_HEADER_BYTES = 100_000_000
_UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    struct.error,
)


def count_parameters(checkpoint: Path) -> int | None:
    """The number of weights of a folder with safetensors or of a GGUF file; None if unknown."""
    try:
        if checkpoint.is_dir():
            return sum(_count_safetensors(path) for path in _weight_files(checkpoint))
        if checkpoint.is_file():
            return _count_gguf(checkpoint)
    except _UNREADABLE:
        return None
    return None


def _weight_files(folder: Path) -> list[Path]:
    index = folder / SAFETENSORS_INDEX
    if index.exists():
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
        if any(PurePosixPath(n).is_absolute() or ".." in PurePosixPath(n).parts for n in names):
            raise ValueError(f"{index}: names files outside of the folder")
        return [folder / name for name in names]
    return sorted(folder.glob("*.safetensors"))


def _count_safetensors(path: Path) -> int:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > _MAX_HEADER_BYTES:
            raise ValueError(f"{path}: header of {length} bytes")
        header = json.loads(file.read(length))
    return sum(math.prod(v["shape"]) for k, v in header.items() if k != "__metadata__")


def _count_gguf(path: Path) -> int:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _GGUFHeader(data)
        return reader.count_parameters()


class _GGUFHeader:
    """A cursor over the header of a GGUF file.

    Source: ggml-org/ggml docs/gguf.md, File Structure.
    """

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def count_parameters(self) -> int:
        if self._data[:4] != b"GGUF":
            raise ValueError("not a GGUF file")
        self._at = 8
        num_tensors, num_keys = self._int64(), self._int64()
        for _ in range(num_keys):
            self._skip_string()
            self._skip_value(self._int32())
        return sum(self._tensor_size() for _ in range(num_tensors))

    def _tensor_size(self) -> int:
        self._skip_string()
        size = math.prod([self._int64() for _ in range(self._int32())])
        self._at += 4 + 8
        return size

    def _skip_value(self, kind: int) -> None:
        if kind == _GGUF_STRING:
            self._skip_string()
        elif kind == _GGUF_ARRAY:
            self._skip_array(self._int32(), self._int64())
        else:
            self._at += _GGUF_SCALARS[kind]

    def _skip_array(self, kind: int, length: int) -> None:
        if kind in _GGUF_SCALARS:
            self._at += _GGUF_SCALARS[kind] * length
            return
        for _ in range(length):
            self._skip_value(kind)

    def _skip_string(self) -> None:
        length = self._int64()
        self._at += length

    def _int32(self) -> int:
        (value,) = struct.unpack_from("<I", self._data, self._at)
        self._at += 4
        return int(value)

    def _int64(self) -> int:
        (value,) = struct.unpack_from("<Q", self._data, self._at)
        self._at += 8
        return int(value)
