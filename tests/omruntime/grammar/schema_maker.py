"""Random JSON Schemas in the manner of JSON-Schema-Test-Suite: every keyword that is enforced.

All that they accept is bounded in length, so that every answer to one ends within a known number
of tokens, however badly a model chooses.
"""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]

_WORDS = ("a", "name", "kind", "größe", "x y", 'q"t', "id", "日")
_PATTERNS = (
    "^[a-c]{1,4}$",
    "^\\d{2}-\\d{2}$",
    "^(?:foo|bar)?z$",
    "^[^\\s]{2}$",
    "^x.{0,3}y$",
    # Days of leap years alone, as people write them.
    "^(?:(?:19|20)(?:0[48]|[2468][048]|[13579][26]))-02-29$",
)
_FORMATS = ("date", "time", "ipv4", "uuid", "date-time", "email", "hostname", "duration")


def random_schema(rng: random.Random, depth: int = 2) -> Schema:
    """A schema that some value satisfies, with annotations thrown in."""
    kinds = [_string, _integer, _number, _enum, _flag, _choice]
    if depth > 0:
        kinds += [_object, _object, _array, _tuple, _any_of, _all_of, _tagged]
    schema = rng.choice(kinds)(rng, depth)
    if rng.random() < 0.2:
        schema["title"] = "a note"
    return schema


def _string(rng: random.Random, _depth: int) -> Schema:
    kind = rng.randrange(3)
    if kind == 0:
        return {"type": "string", "pattern": rng.choice(_PATTERNS)}
    if kind == 1:
        return {"type": "string", "format": rng.choice(_FORMATS)}
    least = rng.randrange(3)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randrange(6)}


def _integer(rng: random.Random, _depth: int) -> Schema:
    least = rng.randrange(-1000, 1000)
    schema: Schema = {"type": "integer", "minimum": least, "maximum": least + rng.randrange(50)}
    if rng.random() < 0.3:
        schema = {"type": "integer", "multipleOf": 7, "minimum": least, "maximum": least + 70}
    if rng.random() < 0.3:
        schema["exclusiveMaximum"] = schema.pop("maximum") + 1
    return schema


def _number(rng: random.Random, _depth: int) -> Schema:
    least = rng.choice([0, 0.5, -1.25, 10])
    return {"enum": [least, least + 1.5]} if rng.random() < 0.5 else {"const": least}


def _enum(rng: random.Random, _depth: int) -> Schema:
    values: list[Any] = [None, True, -3, 2.5, "yes", "nö\n", [1, "b"], {"k": [None]}, "", {}]
    return {"enum": rng.sample(values, rng.randrange(1, 5))}


def _flag(rng: random.Random, _depth: int) -> Schema:
    return {"type": rng.choice(["boolean", "null", ["boolean", "null"]])}


def _choice(rng: random.Random, _depth: int) -> Schema:
    return {"type": ["string", "integer"], "maxLength": 3, "minimum": 0, "maximum": 99}


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(_WORDS, rng.randrange(1, 4))
    schema: Schema = {
        "type": "object",
        "properties": {name: random_schema(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
        "additionalProperties": False,
    }
    if rng.random() < 0.15:
        schema["minProperties"] = 1
    if rng.random() < 0.2:
        schema.pop("additionalProperties")
        schema["required"] = names
        schema["patternProperties"] = {"^p[0-9]$": random_schema(rng, 0)}
        schema["additionalProperties"] = False
        schema["maxProperties"] = len(names) + 2
    return schema


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randrange(2)
    return {
        "type": "array",
        "items": random_schema(rng, depth - 1),
        "minItems": least,
        "maxItems": least + rng.randrange(1, 3),
    }


def _tuple(rng: random.Random, depth: int) -> Schema:
    return {
        "type": "array",
        "prefixItems": [random_schema(rng, depth - 1) for _ in range(2)],
        "items": False,
        "minItems": rng.randrange(3),
    }


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [random_schema(rng, depth - 1) for _ in range(2)]}


def _all_of(rng: random.Random, depth: int) -> Schema:
    return {
        "allOf": [
            {"type": "object", "properties": {"a": random_schema(rng, depth - 1)}},
            {"properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ],
        "properties": {"a": True, "b": True},
        "additionalProperties": False,
    }


def _tagged(rng: random.Random, depth: int) -> Schema:
    return {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, "value": random_schema(rng, depth - 1)},
                "required": ["kind", "value"],
                "additionalProperties": False,
            }
            for kind in ("one", "two")
        ]
    }


def with_reference(rng: random.Random) -> Schema:
    """A schema whose root refers to a definition, and that one to itself, boundedly."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {
            "leaf": random_schema(rng, 0),
            "node": {
                "type": "object",
                "properties": {"leaf": {"$ref": "#/$defs/leaf"}},
                "required": ["leaf"],
                "additionalProperties": False,
            },
        },
        "type": "array",
        "items": {"$ref": "#/$defs/node"},
        "minItems": 1,
        "maxItems": 2,
    }


def make_schemas(count: int, seed: int, depth: int = 2) -> list[Schema]:
    """The same ones for the same seed."""
    rng = random.Random(seed)
    return [with_reference(rng) if i % 10 == 0 else random_schema(rng, depth) for i in range(count)]
