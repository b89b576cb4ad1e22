"""Attributes of models, operators and tensors: the AttrDef of GE's protobufs.

Owns values and the dictionary that shortens names. Where attributes stand is `model_def.py`.

Source: hicann/ge graph_metadef/proto/ge_ir.proto (AttrDef);
base/common/model/model_compress_manager.cc (the dictionary).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from omruntime.errors import BundleError
from omruntime.om_file.byte_cursor import decode_text
from omruntime.om_file.wire import (
    Field,
    Message,
    WireType,
    bytes_field,
    float_field,
    packed_field,
    varint_field,
)

MAX_TEXT_BYTES = 1 << 20
MAX_LIST_ITEMS = 100_000
# The zero byte and the digits of an encoded key; what follows is not read.
_MAX_KEY_BYTES = 9
_VAL_TYPES = {str: 1, int: 2, float: 3, bool: 4}


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value that is not decoded: raw bytes, a tensor, a graph, a text beyond a megabyte."""

    kind: str
    size_bytes: int

    def __str__(self) -> str:
        """Such as `bytes (5,648 bytes)`."""
        return f"{self.kind} ({self.size_bytes:,} bytes)"


AttrValue: TypeAlias = "bool | int | float | str | Opaque | tuple[AttrValue, ...]"
Attributes: TypeAlias = "Mapping[str, AttrValue]"

_OPAQUE = {7: "bytes", 10: "function", 11: "tensor description", 12: "tensor", 13: "graph"}
_OPAQUE |= {16: "lists of floats", 17: "expression"}
_OPAQUE_ITEMS = {7: "bytes", 8: "tensor description", 9: "tensor", 10: "graph", 11: "function"}


@dataclass(frozen=True, slots=True)
class AttributeDictionary:
    """The words that encoded keys and values of operators' attributes stand for.

    Attributes:
        uses_value: Of each name, whether its values are indexes into `values`.
        outer: What names that are themselves encoded are looked up in.
    """

    names: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    uses_value: tuple[bool, ...] = ()
    outer: AttributeDictionary | None = None

    @staticmethod
    def of_model(
        attributes: Attributes, first: AttributeDictionary | None = None
    ) -> AttributeDictionary:
        """The dictionary for a model's operators; an empty one when it has none.

        Args:
            first: That of the file's first block, for the models of the others. It holds for
                them too, and their own counts only where its words are encoded in turn: GE's
                writer encodes a graph that two blocks share twice.
        """
        if first is None and "om_compress_version" not in attributes:
            return AttributeDictionary()
        own = AttributeDictionary(
            tuple(map(str, _items(attributes, "attr_name_enum"))),
            tuple(map(str, _items(attributes, "attr_value_enum"))),
            tuple(map(bool, _items(attributes, "attrs_use_string_value"))),
            first,
        )
        is_second = any(name.startswith("\0") for name in own.names)
        return own if first is None or is_second else first

    def decode(self, key: memoryview | bytes, value: AttrValue) -> tuple[str, AttrValue]:
        """A name and value as they were before encoding.

        A key is a zero byte and digits to the base of 127, least significant first, each plus
        one. Keys that are not encoded stay as they are.
        """
        if bytes(key[:1]) != b"\0":
            return decode_text(key), value
        index = sum((digit - 1) * 127**power for power, digit in enumerate(key[1:_MAX_KEY_BYTES]))
        if not 0 <= index < len(self.names):
            return f"<attribute {index} of no dictionary>", value
        if index < len(self.uses_value) and self.uses_value[index]:
            value = self._decode_value(value)
        name = self.names[index]
        if self.outer is None or not name.startswith("\0"):
            return name, value
        return self.outer.decode(name[:_MAX_KEY_BYTES].encode(), value)

    def _decode_value(self, value: AttrValue) -> AttrValue:
        if isinstance(value, tuple):
            return tuple(self._decode_value(item) for item in value)
        if type(value) is int and 0 <= value < len(self.values):
            return self.values[value]
        return value


def _items(attributes: Attributes, name: str) -> tuple[AttrValue, ...]:
    value = attributes.get(name, ())
    return value if isinstance(value, tuple) else ()


@dataclass(slots=True)
class AttributeReader:
    """Collects the entries of an attribute map."""

    dictionary: AttributeDictionary = field(default_factory=AttributeDictionary)
    attributes: dict[str, AttrValue] = field(default_factory=dict)

    def read(self, entry: Message) -> None:
        """Add one {key, value} entry; a later one of the same key wins, as in protobuf."""
        key, value = memoryview(b""), None
        for item in entry.fields():
            if item.number == 1:
                item.require(WireType.BYTES)
                key = item.data
            elif item.number == 2:
                value = _value_of(entry.nested(item, "attribute value"))
        if value is not None:
            name, decoded = self.dictionary.decode(key[:MAX_TEXT_BYTES], value)
            self.attributes[name] = decoded


def _value_of(message: Message) -> AttrValue:
    """The oneof's value; an AttrDef without one is an empty list."""
    value: AttrValue = ()
    for item in message.fields():
        if item.number == 1:
            value = _list_of(message.nested(item, "attribute list"))
        elif item.number == 14:
            value = _lists_of(message.nested(item, "attribute list of lists"))
        else:
            value = _scalar_of(message, item)
    return value


def _scalar_of(message: Message, item: Field) -> AttrValue:
    if item.number == 2:
        return _text_of(message, item)
    if item.number in (3, 15):
        return item.integer
    if item.number == 4:
        return item.float32
    if item.number == 5:
        return item.unsigned != 0
    return Opaque(_OPAQUE.get(item.number, f"field {item.number}"), len(item.data))


def _text_of(message: Message, item: Field) -> AttrValue:
    is_long = len(item.data) > MAX_TEXT_BYTES
    return Opaque("text", len(item.data)) if is_long else message.text(item)


def _list_of(message: Message) -> tuple[AttrValue, ...]:
    items: list[AttrValue] = []
    for item in message.fields():
        for value in _list_items(message, item):
            if len(items) == MAX_LIST_ITEMS:
                raise BundleError(
                    f"attribute list, offset {item.offset}: got more than {MAX_LIST_ITEMS} items"
                )
            items.append(value)
    return tuple(items)


def _list_items(message: Message, item: Field) -> Iterator[AttrValue]:
    """The values of one field; a packed run has many."""
    if item.number == 2:
        yield _text_of(message, item)
    elif item.number in (3, 12):
        yield from message.integers(item)
    elif item.number == 4:
        yield from message.floats(item)
    elif item.number == 5:
        yield from (number != 0 for number in message.integers(item))
    elif item.number != 20:
        kind = _OPAQUE_ITEMS.get(item.number, f"field {item.number}")
        yield Opaque(kind, len(item.data))


def _lists_of(message: Message) -> tuple[AttrValue, ...]:
    lists: list[AttrValue] = []
    num_items = 0
    for item in message.fields():
        inner = message.nested(item, "attribute list")
        numbers = tuple(n for f in inner.fields() for n in inner.integers(f))
        num_items += 1 + len(numbers)
        if num_items > MAX_LIST_ITEMS:
            raise BundleError(
                f"attribute list, offset {item.offset}: got more than {MAX_LIST_ITEMS} items"
            )
        lists.append(numbers)
    return tuple(lists)


def pack_attributes(number: int, attributes: Attributes) -> bytes:
    """An attribute map in field `number`, sorted by key as GE's own writer sorts it."""
    return b"".join(
        bytes_field(number, bytes_field(1, key) + bytes_field(2, _pack_value(attributes[key])))
        for key in sorted(attributes)
    )


def _pack_value(value: AttrValue) -> bytes:
    if isinstance(value, bool):
        return varint_field(5, value)
    if isinstance(value, int):
        return varint_field(3, value)
    if isinstance(value, float):
        return float_field(4, value)
    if isinstance(value, str):
        return bytes_field(2, value)
    if isinstance(value, Opaque):
        raise TypeError(f"{value} has no value to write")
    return bytes_field(1, _pack_list(value))


def _pack_list(values: Iterable[AttrValue]) -> bytes:
    """The items, then the number of their type; empty lists count as lists of integers."""
    items = list(values)
    kind = type(items[0]) if items else int
    if kind is str:
        packed = b"".join(bytes_field(2, str(item)) for item in items)
    else:
        packed = packed_field(5 if kind is bool else 3, [int(item) for item in items])  # type: ignore[arg-type]
    return packed + varint_field(20, _VAL_TYPES[kind])
