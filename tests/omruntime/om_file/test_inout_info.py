from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omruntime.errors import BundleError
from omruntime.om_file import (
    DataType,
    InoutInfo,
    PartitionType,
    TensorDesc,
    gear_input_shapes,
    gear_output_shapes,
    pack_inout_info,
    parse_inout_info,
    read_om,
)
from tests.omruntime.om_file.samples import STATIC, sample

INFO = InoutInfo(
    inputs=(
        TensorDesc("ids", DataType.INT32, (-1, -1), 64),
        TensorDesc("pool", DataType.FLOAT16, (8, 4), 64, dims_v2=(8, 4)),
        TensorDesc("flag", DataType.INT32, (), 4),
    ),
    outputs=(
        TensorDesc("node:0:logits", DataType.FLOAT32, (-1, 9), 72),
        TensorDesc("node:1:kept", DataType.FLOAT32, (5,), 20, shape_ranges=((1, 5),)),
    ),
    dim_gears=((1, 4), (2, 8)),
    output_shapes=("0,0,1,9", "1,0,2,9", "-1,1,5"),
    input_order=("ids", "pool", "flag"),
)

int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
dims = st.lists(int64, max_size=4).map(tuple)
tensors = st.builds(
    TensorDesc,
    name=names,
    dtype=st.integers(-(2**31), 2**31 - 1),
    dims=dims,
    size_bytes=st.integers(0, 2**64 - 1),
    format=st.integers(0, 40),
    dims_v2=dims,
    shape_ranges=st.lists(st.tuples(int64, int64), max_size=3).map(tuple),
)
infos = st.builds(
    InoutInfo,
    inputs=st.lists(tensors, max_size=3).map(tuple),
    outputs=st.lists(tensors, max_size=3).map(tuple),
    batch_gears=dims,
    image_gears=st.lists(dims, max_size=3).map(tuple),
    dim_gears=st.lists(dims, max_size=3).map(tuple),
    output_shapes=st.lists(names, max_size=3).map(tuple),
    input_order=st.lists(names, max_size=3).map(tuple),
)


@given(infos)
def test_packing_and_parsing_are_inverse(info: InoutInfo) -> None:
    assert parse_inout_info(pack_inout_info(info)) == info


@given(infos, st.data())
def test_a_changed_byte_never_crashes(info: InoutInfo, data: st.DataObject) -> None:
    packed = bytearray(pack_inout_info(info))
    if packed:
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BundleError):
        parse_inout_info(bytes(packed))


def test_every_truncation_says_where_and_what_was_wanted() -> None:
    packed = pack_inout_info(INFO)
    ends = entry_ends(packed)
    assert len(ends) == 5
    for length in set(range(1, len(packed))) - ends:
        with pytest.raises(BundleError, match=r"offset 1\d\d\d: got \d+ bytes, wanted"):
            parse_inout_info(packed[:length], offset=1000)


def entry_ends(packed: bytes) -> set[int]:
    ends, at = set(), 0
    while at < len(packed):
        at += 8 + struct.unpack_from("<I", packed, at + 4)[0]
        ends.add(at)
    return ends


def test_entries_lie_where_the_format_says() -> None:
    packed = pack_inout_info(InoutInfo(inputs=(TensorDesc("ab", DataType.FLOAT16, (3,), 6),)))
    assert struct.unpack_from("<III", packed) == (0, len(packed) - 8, 1)
    assert struct.unpack_from("<QiiIIII", packed, 12) == (6, 2, 1, 2, 8, 0, 0)
    assert packed[44:] == b"ab" + struct.pack("<q", 3)


def test_unknown_entries_are_skipped_and_reported() -> None:
    packed = pack_inout_info(INFO) + struct.pack("<II", 77, 3) + b"abc"
    assert parse_inout_info(packed).unknown_types == (77,)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack("<II", 0, 9) + bytes(4), "got 4 bytes, wanted 9 for entry 0"),
        (struct.pack("<III", 0, 4, 9), "wanted at least 288 for 9 items"),
        (struct.pack("<III", 4, 4, 2**32 - 1), "wanted at least 17179869180 for 4294967295 items"),
        (struct.pack("<IIII", 6, 8, 0, 0), "got 4 more bytes, wanted the end"),
        (struct.pack("<III", 6, 4, 0) * 2, "got a second entry of type 6"),
        (
            struct.pack("<III", 1, 40, 1) + struct.pack("<QiiIIII", 0, 2, 0, 0, 4, 0, 0) + bytes(4),
            "got 4 bytes, wanted a multiple of 8 for dims",
        ),
    ],
)
def test_damage_is_named(data: bytes, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        parse_inout_info(data)


def test_a_description_beyond_the_bound_is_refused() -> None:
    with pytest.raises(BundleError, match="wanted at most 4194304"):
        parse_inout_info(bytes((4 << 20) + 1))


def test_a_gear_fills_the_open_axes_in_input_order() -> None:
    assert gear_input_shapes(INFO, (2, 8)) == {"ids": (2, 8), "pool": (8, 4), "flag": ()}
    assert gear_output_shapes(INFO, 0) == ((1, 9), (5,))
    assert gear_output_shapes(INFO, 1) == ((2, 9), (5,))


@pytest.mark.parametrize("gear", [(1,), (1, 2, 3), ()])
def test_a_gear_of_another_length_is_refused(gear: tuple[int, ...]) -> None:
    with pytest.raises(BundleError, match="the inputs leave 2"):
        gear_input_shapes(INFO, gear)


def test_a_gear_without_its_output_shape_is_refused() -> None:
    with pytest.raises(BundleError, match="gear 2 lacks the shape of output 0"):
        gear_output_shapes(INFO, 2)


def test_the_real_file_reads_as_its_notes_say() -> None:
    """GE's numbering, in which 3 is int32; the protobuf of the same file says 7."""
    partition = read_om(sample(STATIC)).blocks[0].partitions[PartitionType.MODEL_INOUT_INFO]
    info = parse_inout_info(partition)
    assert [str(tensor) for tensor in info.inputs] == ["int32 [16] ND"]
    assert [(t.name, t.dims) for t in info.outputs] == [("output_0_out_0", (-1,))]
    assert pack_inout_info(info) == partition
