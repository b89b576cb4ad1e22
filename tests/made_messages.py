"""Seeded protobuf messages from descriptors: any fields, extreme values, and damage on the wire."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from omruntime.om_file.wire import bytes_field

_INT32 = (0, 1, -1, 2, 3, 20, 21, 60, 61, 64, 2**31 - 1, -(2**31))
_INT64 = (*_INT32, 2**53 + 1, 2**63 - 1, -(2**63))
_UINT32 = (0, 1, 2, 60, 61, 2**31, 2**32 - 1)
_FLOATS = (0.0, -0.0, 1.0, 0.5, -1.0, 1e-45, 1e-9, 3e38, -3e38, float("inf"), float("-inf"))
_BYTES = (b"", b"\0", b"ab", b"\xff\xfe", b"\2\0\0\0ab", bytes(range(256)))
_TEXTS = (
    *("", "a", "Ab1", "toy", "r", "r", "1", "user", "text_input", "input_ids", "BYTES", "INT64"),
    *("stream", "sampling_parameters", '{"temperature": 0, "max_tokens": 2}', "{", "[" * 500),
    *("\0", "a\nb", "é\u202e", "\U0010ffff", "x" * 300, "{{ 1/0 }}", "(a+)+", "start: /a/", "..."),
)
_T = FieldDescriptor
_BY_TYPE: dict[int, Sequence[Any]] = {
    _T.TYPE_BOOL: (False, True),
    _T.TYPE_STRING: _TEXTS,
    _T.TYPE_BYTES: _BYTES,
    _T.TYPE_DOUBLE: (*_FLOATS, float("nan"), 1.7e308),
    _T.TYPE_FLOAT: (*_FLOATS, float("nan")),
    _T.TYPE_UINT32: _UINT32,
    _T.TYPE_UINT64: (*_UINT32, 2**63, 2**64 - 1),
    _T.TYPE_INT64: _INT64,
    _T.TYPE_ENUM: (*range(6), -1, 2**31 - 1),
}
_MAX_DEPTH = 6


def fill(rng: random.Random, message: Message, depth: int = 0) -> None:
    """Set some fields, and those of messages inside."""
    share = rng.choice((0.1, 0.3, 0.7)) if depth else 0.7
    for field in message.DESCRIPTOR.fields:
        if rng.random() < share:
            set_field(rng, message, field, depth)


def set_field(rng: random.Random, message: Message, field: FieldDescriptor, depth: int = 0) -> None:
    """Set one field to something its type can hold."""
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        _fill_map(rng, getattr(message, field.name), inner, depth)
    elif inner is None:
        _set_scalar(rng, message, field)
    elif depth < _MAX_DEPTH:
        for _ in range(rng.choice((0, 1, 1, 2, 5)) if field.is_repeated else 1):
            value = getattr(message, field.name)
            target = value.add() if field.is_repeated else value
            target.SetInParent()
            fill(rng, target, depth + 1)


def _set_scalar(rng: random.Random, message: Message, field: FieldDescriptor) -> None:
    values = _BY_TYPE.get(field.type, _INT32)
    if not field.is_repeated:
        setattr(message, field.name, rng.choice(values))
        return
    count = rng.choice((0, 1, 1, 2, 3, 70))
    getattr(message, field.name).extend(rng.choice(values) for _ in range(count))


def _fill_map(rng: random.Random, entries: Any, entry: Descriptor, depth: int) -> None:
    key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
    for _ in range(rng.choice((0, 1, 2, 5))):
        name = rng.choice(_BY_TYPE.get(key.type, _INT32))
        if value.message_type is None:
            entries[name] = rng.choice(_BY_TYPE.get(value.type, _INT32))
        elif depth < _MAX_DEPTH:
            fill(rng, entries[name], depth + 1)


def change(rng: random.Random, message: Message) -> None:
    """Set a few fields anywhere inside of a message that was right."""
    for _ in range(rng.randint(1, 3)):
        target = rng.choice(_messages_in(message))
        if fields := target.DESCRIPTOR.fields:
            field = rng.choice(fields)
            if rng.random() < 0.2:
                target.ClearField(field.name)
            else:
                set_field(rng, target, field, depth=2)


def _messages_in(message: Message) -> list[Message]:
    """The message and all those inside, but in maps."""
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for inner in value if field.is_repeated else (value,):
            found += _messages_in(inner)
    return found


def damaged(rng: random.Random, raw: bytes) -> bytes:
    """Bytes that may or may not be a message."""
    data = bytearray(raw)
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randbytes(rng.choice((0, 1, 5, 60, 2000)))
    if kind == 1:
        return bytes(data[: rng.randrange(len(data) + 1)])
    if kind == 2:
        for _ in range(rng.randint(1, 6)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data)
    if kind == 3:  # a field of a newer client
        return bytes(data) + bytes_field(rng.choice((30, 1000, 2**29 - 1)), b"x")
    if kind == 4:  # messages in messages, as deep as they get
        inner = rng.randbytes(rng.randrange(4))
        numbers = [rng.choice((1, 2, 3, 5)) for _ in range(rng.choice((5, 90, 110, 2000)))]
        for number in numbers:
            inner = bytes_field(number, inner)
        return bytes(data) + inner
    at = rng.randrange(len(data) + 1)
    return bytes(data[:at] + rng.randbytes(rng.randint(1, 8)) + data[at:])
