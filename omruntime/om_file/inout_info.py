"""MODEL_INOUT_INFO: the flat description of a model's inputs, outputs and gears.

Owns reading and writing of the partition. `gears.py` says what the numbers mean for one gear.

Source: hicann/ge base/common/model/model_introduction.cc.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from omruntime.om_file.byte_cursor import ByteCursor
from omruntime.om_file.data_types import data_type_name, format_name

# Real ones take kilobytes; the bound keeps a hostile file from filling the memory with objects.
MAX_INFO_BYTES = 4 << 20
_INPUTS, _OUTPUTS, _BATCH_GEARS, _IMAGE_GEARS, _DIM_GEARS, _OUTPUT_SHAPES, _INPUT_ORDER = range(7)


@dataclass(frozen=True, slots=True)
class TensorDesc:
    """One input or output.

    Attributes:
        dtype, format: As `DataType` and `Format` number them.
        size_bytes: Of the buffer the caller gives, with the compiler's padding; the largest
            gear's where there are gears, 0 for shapes unknown before run time.
        dims: -1 where a gear or the run decides.
        shape_ranges: Least and most of each axis, for shapes unknown before run time.
    """

    name: str
    dtype: int
    dims: tuple[int, ...]
    size_bytes: int
    format: int = 2
    dims_v2: tuple[int, ...] = ()
    shape_ranges: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        """Such as `float16 [1, -1] ND`."""
        dims = ", ".join(map(str, self.dims))
        return f"{data_type_name(self.dtype)} [{dims}] {format_name(self.format)}"


@dataclass(frozen=True, slots=True)
class InoutInfo:
    """The whole partition.

    Attributes:
        batch_gears: The values of --dynamic_batch_size.
        image_gears, dim_gears: One tuple for each gear of --dynamic_image_size, --dynamic_dims:
            a value for each -1 of the inputs, in `input_order`.
        output_shapes: `gear,output,dim,dim...` with gear -1 for outputs alike in all gears.
        input_order: Input names in the order of --input_shape.
        unknown_types: Entries that this omserve does not know; they were skipped.
    """

    inputs: tuple[TensorDesc, ...] = ()
    outputs: tuple[TensorDesc, ...] = ()
    batch_gears: tuple[int, ...] = ()
    image_gears: tuple[tuple[int, ...], ...] = ()
    dim_gears: tuple[tuple[int, ...], ...] = ()
    output_shapes: tuple[str, ...] = ()
    input_order: tuple[str, ...] = ()
    unknown_types: tuple[int, ...] = ()


_Value: TypeAlias = "tuple[TensorDesc | int | str | tuple[int, ...], ...]"


def parse_inout_info(data: bytes | memoryview, offset: int = 0) -> InoutInfo:
    """Read the partition.

    Args:
        offset: Where it begins in the file, for errors.

    Raises:
        BundleError: Cut short, lengths that do not add up, or larger than `MAX_INFO_BYTES`.
    """
    cursor = ByteCursor(memoryview(data), offset, "MODEL_INOUT_INFO")
    if cursor.num_left > MAX_INFO_BYTES:
        raise cursor.error(f"got {cursor.num_left} bytes, wanted at most {MAX_INFO_BYTES}")
    fields: dict[str, _Value] = {}
    unknown = []
    while cursor.num_left:
        kind, size = cursor.unpack("II", "an entry's type and length")
        part = ByteCursor(
            cursor.take(size, f"entry {kind}"), cursor.offset - size, "MODEL_INOUT_INFO"
        )
        if kind not in _READERS:
            unknown.append(kind)
            continue
        name, read = _READERS[kind]
        if name in fields:
            raise part.error(f"got a second entry of type {kind} ({name}), wanted one")
        fields[name] = read(part)
        part.require_end()
    return InoutInfo(**fields, unknown_types=tuple(unknown))  # type: ignore[arg-type]


def _read_tensors(cursor: ByteCursor) -> tuple[TensorDesc, ...]:
    num = cursor.integer("I", "the number of tensors")
    return tuple(_read_tensor(cursor) for _ in range(_bounded(cursor, num, 32)))


def _read_tensor(cursor: ByteCursor) -> TensorDesc:
    size, layout, dtype, name_len, dims_len, dims_v2_len, ranges_len = cursor.unpack(
        "QiiIIII", "a tensor description"
    )
    name = cursor.text(name_len, "a tensor name")
    dims = cursor.integers("q", dims_len, "dims")
    dims_v2 = cursor.integers("q", dims_v2_len, "dimsV2")
    ends = cursor.integers("q", ranges_len, "shape ranges")
    if len(ends) % 2:
        raise cursor.error(f"got {len(ends)} ends of shape ranges, wanted pairs")
    ranges = tuple(zip(ends[::2], ends[1::2], strict=True))
    return TensorDesc(name, dtype, dims, size, layout, dims_v2, ranges)


def _read_batches(cursor: ByteCursor) -> tuple[int, ...]:
    num = cursor.integer("I", "the number of gears")
    return cursor.integers("q", _bounded(cursor, num, 8) * 8, "gears")


def _read_gears(cursor: ByteCursor) -> tuple[tuple[int, ...], ...]:
    num = cursor.integer("I", "the number of gears")
    counts = cursor.integers("I", _bounded(cursor, num, 4) * 4, "the lengths of gears")
    return tuple(cursor.integers("q", count * 8, "a gear") for count in counts)


def _read_texts(cursor: ByteCursor) -> tuple[str, ...]:
    num = cursor.integer("I", "the number of texts")
    lengths = cursor.integers("I", _bounded(cursor, num, 4) * 4, "the lengths of texts")
    return tuple(cursor.text(length, "a text") for length in lengths)


def _bounded(cursor: ByteCursor, num: int, least_bytes: int) -> int:
    """A count that the bytes left can hold."""
    if num * least_bytes > cursor.num_left:
        raise cursor.error(
            f"got {cursor.num_left} bytes, wanted at least {num * least_bytes} for {num} items"
        )
    return num


_READERS: dict[int, tuple[str, Callable[[ByteCursor], _Value]]] = {
    _INPUTS: ("inputs", _read_tensors),
    _OUTPUTS: ("outputs", _read_tensors),
    _BATCH_GEARS: ("batch_gears", _read_batches),
    _IMAGE_GEARS: ("image_gears", _read_gears),
    _DIM_GEARS: ("dim_gears", _read_gears),
    _OUTPUT_SHAPES: ("output_shapes", _read_texts),
    _INPUT_ORDER: ("input_order", _read_texts),
}


def pack_inout_info(info: InoutInfo) -> bytes:
    """The partition's bytes; the inverse of `parse_inout_info`. Empty entries are left out."""
    values: tuple[tuple[int, bytes], ...] = (
        (_INPUTS, _pack_tensors(info.inputs)),
        (_OUTPUTS, _pack_tensors(info.outputs)),
        (_BATCH_GEARS, _pack_integers(info.batch_gears)),
        (_IMAGE_GEARS, _pack_gears(info.image_gears)),
        (_DIM_GEARS, _pack_gears(info.dim_gears)),
        (_OUTPUT_SHAPES, _pack_texts(info.output_shapes)),
        (_INPUT_ORDER, _pack_texts(info.input_order)),
    )
    return b"".join(struct.pack("<II", kind, len(value)) + value for kind, value in values if value)


def _pack_tensors(tensors: Iterable[TensorDesc]) -> bytes:
    packed = [_pack_tensor(tensor) for tensor in tensors]
    return struct.pack("<I", len(packed)) + b"".join(packed) if packed else b""


def _pack_tensor(tensor: TensorDesc) -> bytes:
    name = tensor.name.encode()
    ends = [end for pair in tensor.shape_ranges for end in pair]
    tails = [struct.pack(f"<{len(n)}q", *n) for n in (tensor.dims, tensor.dims_v2, ends)]
    lengths = (len(name), *(len(tail) for tail in tails))
    head = struct.pack("<QiiIIII", tensor.size_bytes, tensor.format, tensor.dtype, *lengths)
    return head + name + b"".join(tails)


def _pack_integers(numbers: tuple[int, ...]) -> bytes:
    return struct.pack(f"<I{len(numbers)}q", len(numbers), *numbers) if numbers else b""


def _pack_gears(gears: tuple[tuple[int, ...], ...]) -> bytes:
    if not gears:
        return b""
    counts = struct.pack(f"<I{len(gears)}I", len(gears), *map(len, gears))
    return counts + b"".join(struct.pack(f"<{len(gear)}q", *gear) for gear in gears)


def _pack_texts(texts: tuple[str, ...]) -> bytes:
    if not texts:
        return b""
    encoded = [text.encode() for text in texts]
    counts = struct.pack(f"<I{len(encoded)}I", len(encoded), *map(len, encoded))
    return counts + b"".join(encoded)
