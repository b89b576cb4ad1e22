"""What a JSON Schema may say, and how the reader names what it may not."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omruntime.errors import RequestError
from omruntime.grammar.json_schema import read_schema
from omruntime.grammar.schema_values import MAX_DEPTH


def nested(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "array", "uniqueItems": True}, 'keyword "uniqueItems" at # is not enforced'),
        ({"not": {}}, '"not" at #'),
        ({"properties": {"a": {"if": {}}}}, '"if" at #/properties/a'),
        ({"$defs": {"d": {"contains": {}}}}, r'"contains" at #/\$defs/d'),
        ({"dependentRequired": {}}, '"dependentRequired"'),
        ({"unevaluatedProperties": False}, '"unevaluatedProperties"'),
        ({"propertyNames": {}}, '"propertyNames"'),
        ({"minContains": 1}, '"minContains"'),
        ({"$dynamicRef": "#"}, r'"\$dynamicRef"'),
        ({"nullable": True}, 'add "null" to type'),
        ({"x-guidance": {"lenient": True}}, "configures the compiler"),
        ({"maximun": 3}, '"maximun"'),
        ({"properties": {"a": {"$id": "b"}}}, r'"\$id" at #/properties/a'),
        ({"type": "integer", "multipleOf": 0.1}, "multipleOf at # is 0.1"),
        ({"multipleOf": 0}, "multipleOf at # is 0"),
        ({"anyOf": [{"multipleOf": 65521}, {"multipleOf": 65519}]}, "least common multiple"),
        ({"minimum": 2**53 + 1}, "minimum at # is"),
        ({"exclusiveMinimum": True}, "exclusiveMinimum at # is true"),
        ({"const": 1e300}, "const at # is"),
        ({"enum": []}, "enum at # is"),
        ({"enum": [["a\x01b"]]}, "enum at # is .* holds a control character"),
        ({"const": "a\x7fb"}, "const at # is .* holds a control character"),
        ({"pattern": "a\x01b"}, "holds the control character"),
        ({"patternProperties": {"\x7f": {}}}, "patternProperties at # holds the control char"),
        ({"pattern": "^[\\x00-\\x1f]$"}, r"holds \\x00 outside of"),
        ({"pattern": "\\p{Cc}"}, r"holds \\p\{Cc\} outside of"),
        ({"pattern": "\\P{L}"}, r"holds \\P\{L\} outside of"),
        ({"enum": [{"a": [0.1, 1e-12]}]}, "enum at # is"),
        ({"type": []}, "type at # is"),
        ({"type": "int"}, "wanted one or more of array"),
        ({"type": ["null", "null"]}, "names a type twice"),
        ({"minLength": -1}, "minLength at # is -1"),
        ({"maxItems": 10**9}, "maxItems at # is 1000000000, wanted a whole number, 0 to 1000"),
        ({"maxLength": 10**9}, "0 to 65536"),
        ({"minProperties": 3, "required": ["a"]}, "minProperties at # is 3"),
        ({"items": [{}]}, "use prefixItems"),
        ({"additionalItems": False}, "use prefixItems and items"),
        ({"properties": []}, "properties at # is"),
        ({"properties": {"a": 1}}, "wanted an object of schemas"),
        ({"required": "a"}, "list of property names"),
        ({"pattern": "^(?=a)"}, r"pattern at # holds the look-around '\(\?='"),
        ({"pattern": "\\bword"}, "word boundary"),
        ({"pattern": "(a)\\1"}, "back reference"),
        ({"pattern": "[a&&b]"}, "inside of brackets"),
        ({"pattern": "[^]]"}, "inside of brackets"),
        ({"pattern": "a[]b]"}, "inside of brackets"),
        ({"pattern": "[[:alpha:]]"}, "inside of brackets"),
        ({"pattern": "a{99999}"}, "at most 10000 times"),
        ({"patternProperties": {"(?!a)": {}}}, "patternProperties at # holds the look-around"),
        ({"format": "date-tme"}, "enforced are date, date-time"),
        ({"$ref": "http://example.com/s"}, r"\$ref at #"),
        ({"$ref": "#/$defs/none"}, "wanted the place of a schema"),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {}}}, r"without the signs ~ and %"),
        ({"$ref": "#/default", "default": {"not": {}}}, "wanted the place of a schema"),
        ({"$ref": "#"}, "leads back to itself"),
        ({"$schema": "http://json-schema.org/draft-03/schema"}, "wanted draft 4 to 2020-12"),
        (
            {"$schema": "http://json-schema.org/draft-07/schema", "prefixItems": [{}]},
            "does not have",
        ),
        (None, "is null, wanted a schema"),
        (False, "is false"),
        ([], r"is \[\], wanted a schema"),
    ],
)
def test_what_is_not_enforced_is_refused_by_name(schema: object, words: str) -> None:
    """BL-40: every word that a grammar cannot hold is named before any token."""
    with pytest.raises(RequestError, match=words):
        read_schema(json.dumps(schema))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ('{"a":1,"a":2}', 'the key "a" twice'),
        ('{"minimum":NaN}', "NaN is no JSON number"),
        (nested(2000), "nested too deeply|nested deeper than 50"),
        (nested(MAX_DEPTH), "nested deeper than 50"),
        ('{"const":' + "[" * 200 + "]" * 200 + "}", "nested deeper than 50"),
        ('{"maximum":' + "9" * 5000 + "}", "is not JSON|at most 2"),
    ],
)
def test_odd_texts_are_refused(text: str, words: str) -> None:
    """BL-40: 2000-deep nesting."""
    with pytest.raises(RequestError, match=words):
        read_schema(text)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [{"$ref": "#"}]}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ],
)
def test_references_that_describe_nothing_are_refused(schema: object) -> None:
    """BL-40: `$ref` to itself."""
    with pytest.raises(RequestError, match="leads back to itself and describes nothing"):
        read_schema(json.dumps(schema))


def test_recursion_through_a_value_is_taken() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert read_schema(json.dumps(schema)) == schema


def test_many_ways_to_one_definition_are_walked_once() -> None:
    definitions: dict[str, Any] = {"d0": {"type": "null"}}
    for number in range(1, 200):
        references = [{"$ref": f"#/$defs/d{number - 1}"}] * 2
        definitions[f"d{number}"] = {"anyOf": references}
    read_schema(json.dumps({"$ref": "#/$defs/d199", "$defs": definitions}))


def test_notes_go_and_formats_become_patterns() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "http://example.com/s",
        "title": "t",
        "description": {"anything": 1},
        "x-order": 3,
        "type": "array",
        "uniqueItems": False,
        "items": {"type": "string", "format": "date", "pattern": "^20", "default": 1},
    }
    read = read_schema(json.dumps(schema))
    assert read.keys() == {"type", "items"}
    assert read["items"].keys() == {"type", "pattern", "allOf"}
    assert read["items"]["pattern"] == "^20"


def test_properties_may_have_the_names_of_keywords() -> None:
    schema = {"properties": {"not": {"type": "null"}, "$ref": {}, "title": {}, "if": True}}
    assert read_schema(json.dumps(schema)) == schema


def test_true_and_nothing_accept_everything() -> None:
    assert read_schema("true") == read_schema("{}") == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(
        ["type", "properties", "items", "anyOf", "$ref", "enum", "required", "format", "pattern",
         "minItems", "multipleOf", "$defs", "prefixItems", "const", "allOf", "additionalProperties"]
    ), inner),
    max_leaves=20,
)  # fmt: skip


@given(json_values)
def test_whatever_is_sent_is_read_or_refused(value: object) -> None:
    with suppress(RequestError):
        read_schema(json.dumps(value))
