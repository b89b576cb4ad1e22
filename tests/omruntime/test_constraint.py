"""Constraint: one kind, of the right type and size."""

from __future__ import annotations

import pickle

import pytest

from omruntime.constraint import (
    MAX_CHOICES,
    MAX_GRAMMAR_CHARS,
    MAX_REGEX_CHARS,
    MAX_SCHEMA_CHARS,
    Constraint,
)
from omruntime.errors import RequestError
from omruntime.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("constraint", "kind"),
    [
        (Constraint(json_schema="{}"), "json_schema"),
        (Constraint(json_object=True), "json_object"),
        (Constraint(json_schema="{}", free_until="</a>", free_from="<a>"), "json_schema"),
        (Constraint(regex="a"), "regex"),
        (Constraint(grammar='start: "a"'), "grammar"),
        (Constraint(choices=("a", "b")), "choices"),
    ],
)
def test_each_kind_names_itself_and_travels(constraint: Constraint, kind: str) -> None:
    assert constraint.kind == kind
    assert pickle.loads(pickle.dumps(constraint)) == constraint
    assert hash(constraint.key) == hash(pickle.loads(pickle.dumps(constraint)).key)


def test_keys_tell_constraints_apart() -> None:
    keys = {
        Constraint(regex="a").key,
        Constraint(grammar="a").key,
        Constraint(json_schema="a").key,
        Constraint(choices=("a",)).key,
        Constraint(choices=("a", "b")).key,
        Constraint(json_object=True).key,
        Constraint(json_object=True, free_until="a").key,
        Constraint(json_object=True, free_until="a", free_from="b").key,
    }
    assert len(keys) == 8
    assert Constraint(choices=["a"]).key == Constraint(choices=("a",)).key  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "sets nothing, wanted exactly one of json_schema"),
        ({"regex": "a", "json_object": True}, "sets json_object, regex"),
        ({"json_schema": ""}, "json_schema is empty"),
        ({"json_schema": {}}, "json_schema is dict"),
        ({"json_schema": " " * (MAX_SCHEMA_CHARS + 1)}, "at most 65536"),
        ({"regex": "a" * (MAX_REGEX_CHARS + 1)}, "at most 4096"),
        ({"grammar": "a" * (MAX_GRAMMAR_CHARS + 1)}, "at most 32768"),
        ({"regex": "\ud800"}, "regex is not valid Unicode"),
        ({"choices": ()}, "choices has 0 texts"),
        ({"choices": ("a",) * (MAX_CHOICES + 1)}, "wanted 1 to 1000"),
        ({"choices": ("a", "")}, r"choices\[1\] is empty"),
        ({"choices": "ab"}, "choices is 'ab'"),
        ({"choices": ("a" * 9_000, "b" * 9_000)}, "18000 characters all told"),
        ({"json_object": 1}, "json_object is 1"),
        ({"json_object": True, "free_from": "a"}, "without free_until"),
        ({"regex": "a", "free_until": "a"}, "free_until beside regex is not built in"),
        ({"json_object": True, "free_until": "a" * 65}, "has 65 characters"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, object], words: str) -> None:
    """BL-40: an empty list of choices and the like are refused before any token."""
    with pytest.raises(RequestError, match=words):
        Constraint(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ignore_eos": True}, "ignore_eos is set beside a constraint"),
        ({"constraint": "{}"}, "constraint is str"),
    ],
)
def test_params_refuse_what_contradicts_a_constraint(fields: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        SamplingParams(**{"constraint": Constraint(regex="a"), **fields})  # type: ignore[arg-type]


def test_a_constraint_is_off_by_default_and_stays_through_resolving() -> None:
    assert SamplingParams().constraint is None
    assert SamplingParams(ignore_eos=True).constraint is None
