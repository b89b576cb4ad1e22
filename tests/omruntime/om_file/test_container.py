from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omruntime.errors import BundleError
from omruntime.om_file import ModelType, OmHeader, Partition, PartitionType, om_bytes, read_om
from omruntime.om_file.header import OLD_VERSION
from tests.omruntime.om_file.samples import DYNAMIC, OLD, STATIC, sample

HEADER = OmHeader("tiny")
MODEL = Partition(PartitionType.MODEL_DEF, (b"model",))
WEIGHTS = Partition(PartitionType.WEIGHTS_DATA, (b"wei", b"ghts"))
MODEL_AT = 256 + 8 + 2 * 24


def patched(data: bytes, offset: int, layout: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into("<" + layout, changed, offset, value)
    return bytes(changed)


@pytest.mark.parametrize("has_wide_table", [True, False])
@pytest.mark.parametrize("version", [0x20000000, OLD_VERSION])
def test_what_is_written_is_read(version: int, has_wide_table: bool) -> None:
    header = replace(HEADER, version=version, platform_version="1.11.z.0", platform_type=1)
    om = read_om(om_bytes(header, [[MODEL, WEIGHTS]], has_wide_table))
    assert (om.header.name, om.header.version) == ("tiny", version)
    assert (om.header.platform_version, om.header.platform_type) == ("1.11.z.0", 1)
    assert om.header.has_wide_table is has_wide_table
    (block,) = om.blocks
    assert block.partitions[PartitionType.WEIGHTS_DATA] == b"weights"
    assert block.has_running_offsets
    assert block.partition_offset(PartitionType.WEIGHTS_DATA) == om.size_bytes - len(b"weights")


def test_the_header_lies_where_the_format_says() -> None:
    data = om_bytes(replace(HEADER, has_unknown_shape=True), [[MODEL], [MODEL, WEIGHTS]])
    assert data[:4] == b"IMOD"
    assert struct.unpack_from("<II", data, 4) == (256, 0x20000000)
    assert data[84:89] == b"tiny\0"
    assert struct.unpack_from("<I", data, 156) == (2,)
    assert struct.unpack_from("<QBB", data, 184) == (len(data) - 256, 0, 1)
    assert struct.unpack_from("<IIIIQQ", data, 256) == (1, 0, 0, 0, 0, 5)


def test_a_narrow_table_has_entries_of_12_bytes() -> None:
    data = om_bytes(HEADER, [[MODEL, WEIGHTS]], has_wide_table=False)
    assert struct.unpack_from("<I", data, 76) == (len(data) - 256,)
    assert struct.unpack_from("<IIIIIII", data, 256) == (2, 0, 0, 5, 1, 5, 7)


def test_blocks_follow_each_other() -> None:
    om = read_om(om_bytes(HEADER, [[MODEL], [WEIGHTS], [MODEL, WEIGHTS]]))
    assert [len(block.entries) for block in om.blocks] == [1, 1, 2]
    assert om.blocks[2].partitions[PartitionType.MODEL_DEF] == b"model"


def test_empty_partitions_are_left_out() -> None:
    empty = Partition(PartitionType.TASK_INFO, (b"",))
    assert len(read_om(om_bytes(HEADER, [[MODEL, empty]])).blocks[0].entries) == 1


def test_a_file_is_read_like_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.om"
    path.write_bytes(om_bytes(HEADER, [[MODEL, WEIGHTS]]))
    assert read_om(path).blocks[0].partitions[PartitionType.WEIGHTS_DATA] == b"weights"


def test_only_the_sizes_count_where_offsets_disagree() -> None:
    """GE's loader adds up the sizes and never looks at the offsets."""
    data = patched(om_bytes(HEADER, [[MODEL, WEIGHTS]]), 256 + 8 + 24 + 8, "Q", 99)
    (block,) = read_om(data).blocks
    assert block.partitions[PartitionType.WEIGHTS_DATA] == b"weights"
    assert not block.has_running_offsets


def test_bytes_behind_a_static_model_are_no_error() -> None:
    data = om_bytes(HEADER, [[MODEL]]) + b"more"
    om = read_om(patched(data, 184, "Q", len(data) - 256))
    assert om.num_extra_bytes == 4


@pytest.mark.parametrize("blocks", [[[MODEL]], [[MODEL], [WEIGHTS]]])
def test_bytes_behind_a_dynamic_model_are_an_error(blocks: list[list[Partition]]) -> None:
    data = om_bytes(replace(HEADER, has_unknown_shape=True), blocks) + b"more"
    with pytest.raises(BundleError, match="got 4 more bytes, wanted the end"):
        read_om(patched(data, 184, "Q", len(data) - 256))


def test_an_encrypted_file_shows_its_header() -> None:
    om = read_om(patched(om_bytes(HEADER, [[MODEL]]), 80, "B", 1))
    assert om.header.is_encrypted
    assert om.blocks == ()


def bundle_of(models: list[bytes]) -> bytes:
    sizes = [8, *map(len, models)]
    table = struct.pack("<II", len(sizes), 0)
    at = len(table) + 24 * len(sizes)
    for i, size in enumerate(sizes):
        table += struct.pack("<IIQQ", 24 if i else 25, 0, at, size)
        at += size
    data = om_bytes(replace(HEADER, model_type=ModelType.BUNDLE), [[MODEL]])[:256]
    data += table + bytes(8) + b"".join(models)
    return patched(patched(data, 156, "I", len(models)), 184, "Q", len(data))


def test_a_bundle_holds_whole_files() -> None:
    first, second = (om_bytes(OmHeader(n), [[MODEL]]) for n in ("first", "second"))
    om = read_om(bundle_of([first, second]))
    assert [m.header.name for m in om.sub_models] == ["first", "second"]
    assert om.sub_models[1].blocks[0].partitions[PartitionType.MODEL_DEF] == b"model"


def test_models_of_a_bundle_that_share_bytes_are_refused() -> None:
    bundle = bundle_of([om_bytes(OmHeader(n), [[MODEL]]) for n in ("first", "second")])
    (first,) = struct.unpack_from("<Q", bundle, 256 + 8 + 24 + 8)
    doubled = patched(bundle, 256 + 8 + 2 * 24 + 8, "Q", first)
    with pytest.raises(BundleError, match="wanted it behind the one before it"):
        read_om(doubled)


def test_a_bundle_in_a_bundle_is_refused() -> None:
    inner = bundle_of([om_bytes(HEADER, [[MODEL]])])
    with pytest.raises(BundleError, match="bundle inside of a bundle"):
        read_om(bundle_of([inner]))


@pytest.mark.parametrize(
    ("offset", "layout", "value", "message"),
    [
        (0, "I", 1, r"offset 0: got the magic number 0x00000001, wanted 0x444f4d49"),
        (4, "I", 128, "offset 4: got a header of 128 bytes, wanted 256"),
        (184, "Q", 10, "offset 184: got a payload length of 10, but 68 bytes follow"),
        (156, "I", 5000, "offset 156: got 5000 models, wanted 1 to 4096"),
        (156, "I", 2, "got 0 bytes, wanted 8 for the partition table's length"),
        (256, "I", 0, "got 0 partitions, wanted 1 to 8"),
        (256, "I", 9, "got 9 partitions, wanted 1 to 8"),
        (256 + 8 + 16, "Q", 2**64 - 1, "wanted 18446744073709551615 for the partition MODEL_DEF"),
        (256 + 8 + 24, "I", 0, r"got the types \[0, 0\], wanted each at most once"),
    ],
)
def test_damage_is_named_with_its_offset(
    offset: int, layout: str, value: int, message: str
) -> None:
    data = patched(om_bytes(HEADER, [[MODEL, WEIGHTS]]), offset, layout, value)
    with pytest.raises(BundleError, match=message):
        read_om(data)


def test_every_truncation_is_an_error() -> None:
    data = om_bytes(HEADER, [[MODEL, WEIGHTS], [MODEL]])
    for length in range(len(data)):
        with pytest.raises(BundleError, match="offset"):
            read_om(data[:length])


@given(st.binary(max_size=400))
def test_arbitrary_bytes_behind_a_header_never_crash(payload: bytes) -> None:
    head = patched(om_bytes(HEADER, [[MODEL]])[:256], 184, "Q", len(payload))
    try:
        om = read_om(head + payload)
    except BundleError:
        return
    assert sum(len(v) for b in om.blocks for v in b.views) <= len(payload)


def test_om2_is_refused_by_name() -> None:
    with pytest.raises(BundleError, match="OM2 package"):
        read_om(b"PK\x03\x04" + bytes(300))


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(BundleError, match="wanted an OM file"):
            read_om(path)
    with pytest.raises(BundleError, match=r"absent\.om: cannot read it"):
        read_om(tmp_path / "absent.om")


def test_a_long_name_is_refused() -> None:
    with pytest.raises(BundleError, match="40 bytes, wanted at most 31"):
        om_bytes(OmHeader("n" * 40), [[MODEL]])


def test_an_old_header_holds_one_model() -> None:
    with pytest.raises(BundleError, match="an old header holds 1 model, got 2"):
        om_bytes(replace(HEADER, version=OLD_VERSION), [[MODEL], [MODEL]])


@pytest.mark.parametrize("name", [STATIC, DYNAMIC, OLD])
def test_real_files_are_repacked_byte_for_byte(name: str) -> None:
    path = sample(name)
    om = read_om(path)
    blocks = [
        [Partition(PartitionType(e.type), (v,)) for e, v in zip(b.entries, b.views, strict=True)]
        for b in om.blocks
    ]
    assert om_bytes(om.header, blocks, om.header.has_wide_table) == path.read_bytes()


def test_the_real_old_file_is_what_its_notes_say() -> None:
    om = read_om(sample(OLD))
    assert (om.header.version, om.header.model_num) == (OLD_VERSION, 1)
    assert om.header.platform_version == "1.11.z.0"
    assert not om.header.has_wide_table
    (block,) = om.blocks
    assert [entry.type_name for entry in block.entries] == [
        "MODEL_DEF",
        "WEIGHTS_DATA",
        "TBE_KERNELS",
        "TASK_INFO",
    ]
    assert len(block.partitions[PartitionType.WEIGHTS_DATA]) == 320_000


def test_the_real_dynamic_file_has_three_blocks() -> None:
    om = read_om(sample(DYNAMIC))
    assert (om.header.name, om.header.has_unknown_shape) == ("root", True)
    assert [len(block.entries) for block in om.blocks] == [3, 4, 4]
