"""Grammars of the real library: whatever they let through satisfies the constraint."""

from __future__ import annotations

import ipaddress
import json
import random
import re
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, time
from pathlib import Path
from urllib.parse import urlsplit

import jsonschema
import numpy as np
import pytest

from omruntime.constraint import Constraint
from omruntime.errors import NotBuiltInError, PreconditionError, RequestError
from omruntime.grammar.formats import FORMATS
from omruntime.grammar.llguidance_compiler import LLGuidanceCompiler, open_compiler
from omruntime.manifest import SamplingDefaults
from omruntime.sampling.token_matcher import Grammar, TokenMatcher
from tests.omruntime.grammar.schema_maker import make_schemas
from tests.server.scripted_engine import model_facts
from tests.server.tiny_tokenizers import (
    END_ID,
    byte_level_backend,
    metaspace_backend,
    write_tokenizer,
)

BACKEND = byte_level_backend()
HEAD_WIDTH = 300
MODEL = replace(model_facts(HEAD_WIDTH, SamplingDefaults()), eos_token_ids=(END_ID, 299))


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> LLGuidanceCompiler:
    bundle = tmp_path_factory.mktemp("bundle")
    write_tokenizer(bundle / "tokenizer", BACKEND)
    return open_compiler(bundle, MODEL)


def ids_of(matcher: TokenMatcher) -> list[int]:
    return [int(i) for i in np.flatnonzero(matcher.allowed())]


def follow(grammar: Grammar, text: str) -> TokenMatcher:
    """A matcher after a text, byte by byte; fails when one is not allowed."""
    matcher = grammar.new_matcher()
    for token in BACKEND.encode(text, add_special_tokens=False).tokens:
        for sign in token:
            token_id = BACKEND.token_to_id(sign)
            assert matcher.allowed()[token_id], (text, sign)
            matcher.accept(token_id)
    return matcher


def accepts(grammar: Grammar, text: str) -> bool:
    try:
        matcher = follow(grammar, text)
    except AssertionError:
        return False
    return matcher.is_finished or bool(matcher.allowed()[END_ID])


def walk(grammar: Grammar, rng: random.Random, most: int = 3000) -> str | None:
    """A random answer; None when it has no end yet."""
    matcher = grammar.new_matcher()
    token_ids: list[int] = []
    while not matcher.is_finished:
        allowed = ids_of(matcher)
        assert allowed, BACKEND.decode(token_ids)
        token_id = END_ID if END_ID in allowed and rng.random() < 0.5 else rng.choice(allowed)
        if token_id == END_ID:
            break
        matcher.accept(token_id)
        token_ids.append(token_id)
        if len(token_ids) == most:
            return None
    return BACKEND.decode(token_ids)


def schema(text: object) -> Constraint:
    return Constraint(json_schema=json.dumps(text))


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint(regex="[ab]{2}c?"),
        Constraint(choices=("ab", "abc", "bac", "cab")),
        Constraint(grammar='start: X "c"?\nX: /[ab]{2}/'),
    ],
)
def test_what_matches_and_nothing_else(
    compiler: LLGuidanceCompiler, constraint: Constraint
) -> None:
    grammar = compiler.compile(constraint)
    assert accepts(grammar, "ab")
    assert not accepts(grammar, "a")
    assert not accepts(grammar, "ab ")
    assert accepts(grammar, "abc")
    assert follow(grammar, "abc").is_finished
    assert not follow(grammar, "ab").is_finished


def test_masks_are_as_wide_as_the_logits_and_end_where_the_text_may(
    compiler: LLGuidanceCompiler,
) -> None:
    grammar = compiler.compile(Constraint(regex="a*b"))
    start = grammar.new_matcher().allowed()
    assert start.shape == (HEAD_WIDTH,)
    assert start.dtype == np.bool_
    assert [BACKEND.decode([int(i)]) for i in np.flatnonzero(start)] == ["a", "b"]
    # The second end token is an id that the tokenizer does not have.
    later = compiler.compile(Constraint(regex="a*")).new_matcher().allowed()
    assert np.flatnonzero(later).tolist() == sorted([END_ID, BACKEND.token_to_id("a")])


def test_no_special_or_unknown_token_is_ever_allowed(compiler: LLGuidanceCompiler) -> None:
    grammar = compiler.compile(Constraint(regex="(?s:.*)"))
    mask = grammar.new_matcher().allowed()
    specials = [i for i, t in BACKEND.get_added_tokens_decoder().items() if t.special]
    assert not mask[[i for i in specials if i != END_ID]].any()
    assert not mask[BACKEND.get_vocab_size() :].any()
    assert mask[END_ID]


def test_matchers_of_one_grammar_do_not_disturb_each_other(compiler: LLGuidanceCompiler) -> None:
    grammar = compiler.compile(Constraint(regex="ab|ba"))
    first, second = grammar.new_matcher(), grammar.new_matcher()
    first.accept(BACKEND.token_to_id("a"))
    second.accept(BACKEND.token_to_id("b"))
    assert ids_of(first) == [BACKEND.token_to_id("b")]
    assert ids_of(second) == [BACKEND.token_to_id("a")]


def test_the_state_is_a_function_of_the_tokens(compiler: LLGuidanceCompiler) -> None:
    """So that an answer that is computed again after a preemption goes on as it would have."""
    grammar = compiler.compile(schema({"type": "object"}))
    rng = random.Random(0)
    ours, token_ids = grammar.new_matcher(), []
    for _ in range(60):
        allowed = ids_of(ours)
        again = grammar.new_matcher()
        for token_id in token_ids:
            again.accept(token_id)
        assert ids_of(again) == allowed
        token_ids.append(rng.choice([i for i in allowed if i != END_ID]))
        ours.accept(token_ids[-1])
        if ours.is_finished:
            break


@pytest.mark.parametrize("made", make_schemas(120, seed=7))
def test_every_answer_validates(compiler: LLGuidanceCompiler, made: dict[str, object]) -> None:
    """BL-40: enforced means that the jsonschema package accepts every answer."""
    jsonschema.Draft202012Validator.check_schema(made)
    validator = jsonschema.Draft202012Validator(
        made, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    grammar = compiler.compile(schema(made))
    rng = random.Random(str(made))
    for _ in range(4):
        text = walk(grammar, rng)
        assert text is not None, made
        validator.validate(json.loads(text))


def _is_uri(text: str) -> None:
    parts = urlsplit(text)
    assert parts.scheme
    assert parts.hostname
    assert text.isascii()
    assert not set(text) & set(' "<>\\^`{|}')


def _is_hostname(text: str) -> None:
    labels = text.split(".")
    assert len(labels) >= 2
    assert len(text) <= 253
    assert all(re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?", part) for part in labels)
    assert max(map(len, labels)) <= 63


def _is_email(text: str) -> None:
    local, _, domain = text.rpartition("@")
    assert 0 < len(local) <= 64
    _is_hostname(domain)


def _is_duration(text: str) -> None:
    assert re.fullmatch(
        r"P(?!$)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?)", text
    ), text


CHECKS: dict[str, Callable[[str], object]] = {
    "date": date.fromisoformat,
    "date-time": datetime.fromisoformat,
    "duration": _is_duration,
    "email": _is_email,
    "hostname": _is_hostname,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "time": time.fromisoformat,
    "uri": _is_uri,
    "uuid": uuid.UUID,
}


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_formats_hold_as_others_read_them(compiler: LLGuidanceCompiler, name: str) -> None:
    grammar = compiler.compile(schema({"type": "string", "format": name}))
    rng = random.Random(name)
    for _ in range(25):
        text = walk(grammar, rng)
        assert text is not None
        CHECKS[name](json.loads(text))


@pytest.mark.parametrize(
    ("year", "leap"),
    [(1900, False), (2000, True), (2023, False), (2024, True), (4, True), (100, False)],
)
def test_dates_know_leap_years(compiler: LLGuidanceCompiler, year: int, leap: bool) -> None:
    grammar = compiler.compile(schema({"type": "string", "format": "date"}))
    assert accepts(grammar, f'"{year:04}-02-29"') is leap
    assert accepts(grammar, f'"{year:04}-02-28"')
    assert not accepts(grammar, '"0000-01-01"')


SIGNS = [*map(chr, range(0x7F)), "é", "日", "😀"]


@pytest.mark.parametrize(
    "pattern",
    [
        '^[^"]$', '^[^"\\\\]$', "^[^\\\\]$", "^\\s$", "^[^\\S ]$", "^[\\t\\n]$", "^\\S$", "^.$",
        "^[^\\n]$", "^[^\\x00-\\x1f]$", "^\\D$", "^[!-~]$", "^[#-\\[]$", "^\\W$",
        "^[^\\x20-\\x7e]$",
        '^[^\\x00-\\x1f"\\\\]$', '^(?:"|a)$', '^[^a-zA-Z0-9"]$', "^[\\s\\S]$",
        '^(?:[^"]|\\t)$', "^(?:\\t|\\n|\\f|\\r)$", "^[^\\\\\\]]$", "^\\\\$",
    ],
)  # fmt: skip
def test_patterns_let_through_what_they_say(compiler: LLGuidanceCompiler, pattern: str) -> None:
    """Sign by sign as Python reads them: nothing more, and of what can be written nothing less."""
    grammar = compiler.compile(schema({"type": "string", "pattern": pattern}))
    wanted = re.compile(pattern, re.ASCII)
    for sign in SIGNS:
        taken = accepts(grammar, json.dumps(sign, ensure_ascii=False))
        matches = wanted.search(sign) is not None
        assert matches or not taken, sign
        assert taken or not matches or (sign < " " and sign not in "\t\n\f\r"), sign


def test_a_named_property_comes_once_in_one_spelling(compiler: LLGuidanceCompiler) -> None:
    """A second spelling of a key, by escapes, would replace a value that was checked."""
    grammar = compiler.compile(
        schema({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]})
    )
    assert accepts(grammar, '{"a":1,"b":"x"}')
    assert not accepts(grammar, '{"a":1,"a":"x"}')
    assert not accepts(grammar, '{"a":1,"\\u0061":"x"}')


def test_white_space_has_an_end(compiler: LLGuidanceCompiler) -> None:
    grammar = compiler.compile(Constraint(json_object=True))
    assert accepts(grammar, '{ "a" : [1, 2] }')
    assert accepts(grammar, '{\n  "a": 1\n}')
    assert accepts(grammar, "{\n" + "    " * 8 + '"a": 1}')
    assert not accepts(grammar, "{" + " " * 5 + "}")
    assert not accepts(grammar, "{\n\n}")


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (Constraint(regex="a[^\\s\\S]"), "allows no answer"),
        (Constraint(regex="("), "constraint.regex cannot be compiled"),
        (Constraint(regex="(?=a)a"), "look-around"),
        (Constraint(regex="a{0}"), "allows the empty answer alone"),
        (Constraint(grammar="start: nothing"), "constraint.grammar cannot be compiled"),
        (Constraint(grammar="start: a\na[lazy, temperature=1]: /a/"), "sets temperature"),
        (Constraint(grammar='start: %json {"not": {}}'), "%json"),
        (Constraint(grammar='%llguidance {"allow_invalid_utf8": true}\nstart: /./'), "utf8"),
        (Constraint(grammar='{"grammars": []}'), "constraint.grammar cannot be compiled"),
        (Constraint(grammar='start: "a"\n%json {'), "constraint.grammar"),
        (schema({"type": "integer", "minimum": 2, "maximum": 1}), "json_schema cannot be compiled"),
        (schema({"type": "string", "enum": [1]}), "json_schema cannot be compiled"),
        (schema({"required": ["a"], "properties": {"a": False}, "type": "object"}), "'a'"),
        (schema({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "oneOf"),
        (schema({"patternProperties": {"a": {}, "b": {}}}), "patternProperty"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    compiler: LLGuidanceCompiler, constraint: Constraint, words: str
) -> None:
    """BL-40: a regex that cannot match, and schemas that nothing satisfies."""
    with pytest.raises(RequestError, match=words):
        compiler.compile(constraint)


def test_a_vocabulary_with_byte_fallback(tmp_path: Path) -> None:
    backend = metaspace_backend("gemma")
    write_tokenizer(tmp_path / "tokenizer", backend)
    model = replace(model_facts(backend.get_vocab_size(), SamplingDefaults()), eos_token_ids=(2,))
    matcher = open_compiler(tmp_path, model).compile(Constraint(regex="a\\p{L}+")).new_matcher()
    # Of two tokens for the same byte the library keeps one.
    assert [backend.id_to_token(i) for i in ids_of(matcher)] == ["a"]
    matcher.accept(backend.token_to_id("a"))
    assert backend.token_to_id("日本") in ids_of(matcher)


def test_without_end_tokens_a_complete_answer_ends_all_the_same(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer", BACKEND)
    compiler = open_compiler(tmp_path, replace(MODEL, eos_token_ids=()))
    matcher = follow(compiler.compile(Constraint(regex="ab?")), "a")
    assert ids_of(matcher) == [BACKEND.token_to_id("b")]
    matcher.accept(BACKEND.token_to_id("b"))
    assert matcher.is_finished


def test_a_token_that_was_not_allowed_ends_in_an_error(compiler: LLGuidanceCompiler) -> None:
    grammar = compiler.compile(Constraint(regex="ab"))
    matcher = grammar.new_matcher()
    matcher.accept(BACKEND.token_to_id("b"))
    assert not matcher.is_finished
    with pytest.raises(RequestError, match="cannot be followed further"):
        matcher.allowed()
    assert not grammar.is_intact


def test_a_bundle_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match=r"tokenizer/tokenizer\.json"):
        open_compiler(tmp_path, MODEL)


def test_a_tokenizer_that_the_library_cannot_read_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer", metaspace_backend("first"))
    with pytest.raises(PreconditionError, match="cannot be followed with this bundle"):
        open_compiler(tmp_path, MODEL)


def test_an_absent_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(NotBuiltInError, match=r"pip install '\.\[constraints\]'"):
        open_compiler(tmp_path, MODEL)


ANSWER = '{"a": 1}'
A_ONLY = """{
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": false
}"""


def is_followed(grammar: Grammar, text: str) -> bool:
    """Whether every token of a text is allowed."""
    matcher = grammar.new_matcher()
    for token_id in BACKEND.encode(text, add_special_tokens=False).ids:
        if not matcher.allowed()[token_id]:
            return False
        matcher.accept(token_id)
    return True


@pytest.mark.parametrize("free_from", ["", "<think>"])
@pytest.mark.parametrize(
    "thought",
    ['<think>\nHm </thi, {"b"\n</think>\n\n', "<think></think>", "<think>日</think> \n"],
)
def test_a_free_beginning_ends_at_its_mark(
    compiler: LLGuidanceCompiler, thought: str, free_from: str
) -> None:
    """Whatever stands before, what follows is held to the schema."""
    grammar = compiler.compile(
        Constraint(json_schema=A_ONLY, free_until="</think>", free_from=free_from)
    )
    assert is_followed(grammar, thought + ANSWER)
    assert not is_followed(grammar, thought + "x")
    assert not is_followed(grammar, thought + '{"b"')
    assert not is_followed(grammar, thought + ANSWER + "x")
    assert not is_followed(grammar, "<think>Hm<|im_end|>")


def test_a_beginning_is_free_only_where_it_is_asked_for(compiler: LLGuidanceCompiler) -> None:
    either = compiler.compile(
        Constraint(json_schema=A_ONLY, free_until="</think>", free_from="<think>")
    )
    assert is_followed(either, ANSWER)
    assert not is_followed(either, "Hm")
    always = compiler.compile(Constraint(json_schema=A_ONLY, free_until="</think>"))
    assert is_followed(always, "Hm</think>" + ANSWER)
    assert is_followed(always, ANSWER + "</think>" + ANSWER)
    assert not is_followed(always, ANSWER + "<|im_end|>")
