from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omruntime.errors import BundleError
from omruntime.om_file.wire import (
    FieldBudget,
    Message,
    bytes_field,
    float_field,
    packed_field,
    varint_field,
)

int64 = st.integers(-(2**63), 2**63 - 1)


def message(data: bytes, max_fields: int = 100) -> Message:
    return Message(memoryview(data), 1000, "test", FieldBudget(max_fields))


@given(st.integers(1, 2**29 - 1), int64)
def test_integers_come_back(number: int, value: int) -> None:
    (field,) = message(varint_field(number, value)).fields()
    assert (field.number, field.integer) == (number, value)


@given(st.lists(int64, min_size=1, max_size=20))
def test_packed_and_single_integers_read_alike(values: list[int]) -> None:
    packed = message(packed_field(3, values))
    single = message(b"".join(varint_field(3, value) for value in values))
    for whole in (packed, single):
        assert [n for f in whole.fields() for n in whole.integers(f)] == values


def test_bytes_and_floats_come_back_with_their_place() -> None:
    whole = message(bytes_field(1, "ab") + float_field(2, 1.5))
    text, number = whole.fields()
    assert (whole.text(text), text.offset) == ("ab", 1002)
    assert (number.float32, number.offset) == (1.5, 1005)


def test_a_nested_message_keeps_the_file_offset() -> None:
    outer = message(varint_field(9, 1) + bytes_field(1, varint_field(2, 7)))
    *_, field = outer.fields()
    (inner,) = outer.nested(field, "inner").fields()
    assert (inner.integer, inner.offset) == (7, 1000 + 2 + 2 + 2)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x80", "offset 1000: got a varint without end"),
        (b"\x08" + b"\xff" * 11, "offset 1001: got a varint without end, wanted at most 10 bytes"),
        (b"\x00\x01", "offset 1000: got field number 0"),
        (b"\x0b", "offset 1001: got wire type 3, wanted 0, 1, 2 or 5"),
        (b"\x0a\x05abc", "offset 1000: got 3 bytes, wanted 5 for field 1"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "wanted 18446744073709551615"),
        (b"\x0d\x00", "got 1 bytes, wanted 4 for field 1"),
    ],
)
def test_damage_is_named_with_its_offset(data: bytes, error: str) -> None:
    with pytest.raises(BundleError, match=error):
        list(message(data).fields())


def test_a_value_of_another_wire_type_is_refused() -> None:
    (field,) = message(varint_field(1, 1)).fields()
    with pytest.raises(BundleError, match="field 1, offset 1002: got wire type 0, wanted 2"):
        message(b"").nested(field, "inner")
    with pytest.raises(BundleError, match="wanted 5"):
        _ = field.float32


def test_the_budget_bounds_fields_and_packed_items() -> None:
    with pytest.raises(BundleError, match="more than 3 protobuf fields"):
        list(message(varint_field(1, 1) * 4, max_fields=3).fields())
    whole = message(packed_field(1, range(10)), max_fields=5)
    with pytest.raises(BundleError, match="more than 5 protobuf fields"):
        [n for f in whole.fields() for n in whole.integers(f)]


def test_long_texts_count_as_many_fields() -> None:
    whole = message(bytes_field(1, "x" * 800), max_fields=20)
    (field,) = whole.fields()
    with pytest.raises(BundleError, match="more than 20 protobuf fields"):
        whole.text(field)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_never_crash(data: bytes) -> None:
    with contextlib.suppress(BundleError):
        whole = message(data)
        for field in whole.fields():
            list(whole.integers(field))
