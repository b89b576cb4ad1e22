"""What the value of each enforced keyword of a JSON Schema may be.

Owns types, ranges and the limits below, which the compiler lacks or says less clearly. Whether a
keyword may stand where it stands is `json_schema.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from omruntime.grammar.formats import FORMATS

# Deeper ones are nobody's real schema; the compiler recurses, and its JSON reader stops at 128.
MAX_DEPTH = 50
# Each item and each property that is counted becomes a rule of the grammar.
MAX_COUNTED = 1_000
MAX_LENGTH = 65_536
# The compiler holds numbers as doubles, which are exact so far.
MAX_EXACT = 2**53

# The compiler reads a pointer as it stands, without the escapes ~0, ~1 and %XX.
_PLAIN_POINTER = re.compile(r"#(/[^/~%\"\\]+)*")
# Control characters without a short escape: \u would also spell a key in two ways, and the compiler
# leaves out what it cannot write.
_UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_PLAIN_NUMBERS = "at most 2^53, with at most 10 digits behind the point"

Check = Callable[[Any], str]
"""Says what is wrong with a value; nothing when nothing is."""


def _is_schema(value: Any) -> bool:
    return isinstance(value, bool | dict)


def _a_schema(value: Any) -> str:
    return "" if _is_schema(value) else "wanted a schema: an object, true or false"


def _schemas(value: Any) -> str:
    if isinstance(value, list) and value and all(map(_is_schema, value)):
        return ""
    return "wanted a list of schemas, not empty"


def _items(value: Any) -> str:
    return "wanted one schema; use prefixItems" if isinstance(value, list) else _a_schema(value)


def _named_schemas(value: Any) -> str:
    if isinstance(value, dict) and all(map(_is_schema, value.values())):
        return ""
    return "wanted an object of schemas"


def _count(value: Any) -> str:
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNTED
    return "" if fits else f"wanted a whole number, 0 to {MAX_COUNTED}"


def _length(value: Any) -> str:
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_LENGTH
    return "" if fits else f"wanted a whole number, 0 to {MAX_LENGTH}"


def _bound(value: Any) -> str:
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    return "" if fits and _is_plain(value) else f"wanted a number of {_PLAIN_NUMBERS}"


def _multiple(value: Any) -> str:
    if isinstance(value, float) and not value.is_integer():
        return "wanted a whole number: fractions are not exact in binary, so validators disagree"
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**32
    return "" if fits else "wanted a whole number above 0 and below 2^32"


def _type(value: Any) -> str:
    names = value if isinstance(value, list) else [value]
    if names and all(isinstance(name, str) and name in _TYPES for name in names):
        return "" if len(set(names)) == len(names) else "which names a type twice"
    return f"wanted one or more of {', '.join(sorted(_TYPES))}"


def _names(value: Any) -> str:
    fits = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return "" if fits else "wanted a list of property names"


def _values(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return "wanted a list of values, not empty"
    return next(filter(None, map(_value, value)), "")


def _value(value: Any) -> str:
    """Any JSON value, as long as the compiler reproduces it exactly."""
    waiting = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if depth > MAX_DEPTH:
            return f"which is nested deeper than {MAX_DEPTH} levels"
        if isinstance(item, int | float) and not _is_plain(item):
            return f"wanted numbers of {_PLAIN_NUMBERS}"
        if isinstance(item, str) and _UNWRITABLE.search(item):
            return "which holds a control character that answers are not written with"
        children = item.values() if isinstance(item, dict) else item
        if isinstance(item, dict | list):
            waiting += [(child, depth + 1) for child in children]
    return ""


def _is_plain(value: float) -> bool:
    """Whether the compiler writes the number as it is: exact, and without an exponent."""
    return abs(value) <= MAX_EXACT and (isinstance(value, int) or float(f"{value:.10f}") == value)


def _text(value: Any) -> str:
    return "" if isinstance(value, str) else "wanted text"


def _format(value: Any) -> str:
    if isinstance(value, str) and value in FORMATS:
        return ""
    return f"which is not enforced; enforced are {', '.join(sorted(FORMATS))}"


def _reference(value: Any) -> str:
    if isinstance(value, str) and _PLAIN_POINTER.fullmatch(value):
        return ""
    return "wanted a place inside of this schema, such as #/$defs/name, without the signs ~ and %"


CHECKS: dict[str, Check] = {
    "$defs": _named_schemas,
    "$ref": _reference,
    "additionalProperties": _a_schema,
    "allOf": _schemas,
    "anyOf": _schemas,
    "const": _value,
    "definitions": _named_schemas,
    "enum": _values,
    "exclusiveMaximum": _bound,
    "exclusiveMinimum": _bound,
    "format": _format,
    "items": _items,
    "maxItems": _count,
    "maxLength": _length,
    "maxProperties": _count,
    "maximum": _bound,
    "minItems": _count,
    "minLength": _length,
    "minProperties": _count,
    "minimum": _bound,
    "multipleOf": _multiple,
    "oneOf": _schemas,
    "pattern": _text,
    "patternProperties": _named_schemas,
    "prefixItems": _schemas,
    "properties": _named_schemas,
    "required": _names,
    "type": _type,
}
