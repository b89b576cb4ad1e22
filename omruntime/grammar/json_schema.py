"""Checks and rewrites a JSON Schema, so that what is compiled enforces all that it says.

Owns which keywords are enforced, which are notes, and the limits of their values: the compiler
drops some in silence, takes others under conditions, and has no bound on a few. What passes here
means the same in every draft from 4 to 2020-12, except that nothing beside `$ref` is ignored.
Regular expressions are `regex.py`, formats are `formats.py`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from omruntime.errors import RequestError
from omruntime.grammar.formats import apply_format
from omruntime.grammar.regex import within_json
from omruntime.grammar.schema_values import CHECKS, MAX_DEPTH

_DRAFT = re.compile(
    r"https?://json-schema\.org/(draft/2020-12|draft/2019-09|draft-07|draft-06|draft-04)/schema#?"
)
_OLD_DRAFT = re.compile(r".*/draft(-0\d|/2019-09)/.*")
_NOTES = frozenset(
    {
        "$anchor",
        "$comment",
        "$schema",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "deprecated",
        "description",
        "discriminator",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    }
)
# Kept for `$ref`; what they hold is checked as far as anything is.
_DEFINITIONS = ("$defs", "definitions")
_IN_PLACE = ("allOf", "anyOf", "oneOf")
_HINTS = {
    "additionalItems": "; use prefixItems and items",
    "nullable": '; add "null" to type',
    "x-guidance": "; it configures the compiler, which is not a request's to do",
}

Schema = dict[str, Any]


def read_schema(text: str) -> Schema:
    """The schema to compile: without notes, with formats as patterns.

    Args:
        text: At most `MAX_SCHEMA_CHARS` characters.

    Raises:
        RequestError: It is no schema, or holds what is not enforced; names keyword and place.
    """
    return SchemaReader(_parse(text)).read()


def _parse(text: str) -> Schema:
    try:
        schema = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except RecursionError:
        raise _wrong(f"is nested too deeply, wanted at most {MAX_DEPTH} levels") from None
    except ValueError as error:  # JSONDecodeError is one; so are numbers of too many digits
        raise _wrong(f"is not JSON: {error}") from error
    if schema is True:
        return {}
    if schema is False:
        raise _wrong("is false, which no answer satisfies")
    if not isinstance(schema, dict):
        raise _wrong(f"is {_shown(schema)}, wanted a schema: an object")
    return schema


def _unique(pairs: list[tuple[str, Any]]) -> Schema:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the key {_shown(twice)} twice")
    return entries


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


class SchemaReader:
    """Walks one schema, which it owns and changes."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._schemas: dict[str, Schema | bool] = {}
        self._multiples: set[int] = set()
        self._has_prefix_items = False

    def read(self) -> Schema:
        """Check everything; returns the changed schema."""
        is_old = self._read_draft()
        waiting: list[tuple[str, Schema | bool, int]] = [("#", self._root, 1)]
        while waiting:
            place, schema, depth = waiting.pop()
            if depth > MAX_DEPTH:
                raise _wrong(f"is nested deeper than {MAX_DEPTH} levels at {place[:200]}")
            self._schemas[place] = schema
            if not isinstance(schema, bool):
                self._read_one(place, schema)
                waiting += [(where, child, depth + 1) for where, child in _children(place, schema)]
        if is_old and self._has_prefix_items:
            raise _wrong("uses prefixItems, which its $schema does not have; leave $schema out")
        self._check_multiples()
        self._check_references()
        return self._root

    def _read_draft(self) -> bool:
        draft = self._root.get("$schema", "")
        if draft and not (isinstance(draft, str) and _DRAFT.fullmatch(draft)):
            raise _wrong(f"$schema is {_shown(draft)}, wanted draft 4 to 2020-12; leave it out")
        self._root.pop("$id", None)
        return bool(_OLD_DRAFT.fullmatch(draft))

    def _read_one(self, place: str, schema: Schema) -> None:
        for name in list(schema):
            value = schema[name]
            if _is_note(name, value):
                del schema[name]
            elif name not in CHECKS:
                raise _wrong(f"keyword {_shown(name)} at {place} is not enforced{_hint(name)}")
            else:
                problem = CHECKS[name](value)
                if problem:
                    raise _wrong(f"{name} at {place} is {_shown(value)}, {problem}")
        self._has_prefix_items |= "prefixItems" in schema
        if "multipleOf" in schema:
            self._multiples.add(schema["multipleOf"])
        _check_least_properties(place, schema)
        if "pattern" in schema:
            schema["pattern"] = within_json(f"json_schema: pattern at {place}", schema["pattern"])
        _rewrite_names(place, schema)
        apply_format(schema)

    def _check_multiples(self) -> None:
        """The compiler multiplies what applies to one number, in 32 bits."""
        if self._multiples and math.lcm(*self._multiples) * max(self._multiples) >= 2**32:
            raise _wrong(
                f"multipleOf has the values {sorted(self._multiples)[:10]}, whose least common "
                f"multiple times the largest is not below 2^32; use smaller ones"
            )

    def _check_references(self) -> None:
        """Each reference leads to a schema that was checked, and on to something that is none."""
        for place, schema in self._schemas.items():
            reference = None if isinstance(schema, bool) else schema.get("$ref")
            if reference is not None and reference not in self._schemas:
                raise _wrong(
                    f"$ref at {place} is {_shown(reference)}, wanted the place of a schema inside "
                    f"of this one, such as #/$defs/name, without the signs ~ and %"
                )
        done: set[str] = set()
        for place in self._schemas:
            self._follow(place, done)

    def _follow(self, start: str, done: set[str]) -> None:
        """Depth first along what stands for the very same value; a circle describes nothing."""
        path = [start]
        todo = [self._in_place(start)]
        while path:
            place = next(todo[-1], None)
            if place is None:
                done.add(path.pop())
                todo.pop()
            elif place in path:
                raise _wrong(f"$ref: {place} leads back to itself and describes nothing")
            elif place not in done:
                path.append(place)
                todo.append(self._in_place(place))

    def _in_place(self, place: str) -> Iterator[str]:
        schema = self._schemas[place]
        if isinstance(schema, bool):
            return
        if "$ref" in schema:
            yield schema["$ref"]
        for name in _IN_PLACE:
            for index in range(len(schema.get(name, ()))):
                yield f"{place}/{name}/{index}"


def _rewrite_names(place: str, schema: Schema) -> None:
    """Rewrite the patterns of property names."""
    named = schema.get("patternProperties")
    if named:
        what = f"json_schema: patternProperties at {place}"
        schema["patternProperties"] = {within_json(what, p): s for p, s in named.items()}
        if len(schema["patternProperties"]) < len(named):
            raise _wrong(f"patternProperties at {place} has a pattern in two spellings")


def _is_note(name: str, value: Any) -> bool:
    """Whether an entry says nothing about which values the schema accepts."""
    if name.startswith("x-"):
        return name not in _HINTS
    return name in _NOTES or (name == "uniqueItems" and value is False)


def _children(place: str, schema: Schema) -> Iterator[tuple[str, Schema | bool]]:
    for name in (*_IN_PLACE, "prefixItems"):
        for index, child in enumerate(schema.get(name, ())):
            yield f"{place}/{name}/{index}", child
    for name in ("properties", "patternProperties", *_DEFINITIONS):
        for key, child in schema.get(name, {}).items():
            yield f"{place}/{name}/{key}", child
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield f"{place}/{name}", schema[name]


def _check_least_properties(place: str, schema: Schema) -> None:
    """Keys that the schema does not name may come twice, and count once."""
    least, named = schema.get("minProperties", 0), len(set(schema.get("required", ())))
    if least > named + 1:
        raise _wrong(
            f"minProperties at {place} is {least} beside {named} required properties; more than "
            f"one beyond those is not enforced"
        )


def _hint(name: str) -> str:
    return _HINTS.get(name, "; leave it out, or write it with keywords that are")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _wrong(what: str) -> RequestError:
    return RequestError(f"constraint.json_schema {what}")
