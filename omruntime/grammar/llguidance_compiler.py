"""LLGuidanceCompiler: constraints through the llguidance library; the one file that imports it.

The library is optional and imported with the first constraint. It knows the vocabulary from the
bundle's tokenizer.json; which tokens end an answer, and how wide the logits are, comes from the
manifest.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from omruntime.constraint import Constraint
from omruntime.errors import NotBuiltInError, PreconditionError, RequestError
from omruntime.grammar.json_schema import read_schema
from omruntime.grammar.lark import require_built_in
from omruntime.grammar.regex import regex_of_choices, require_portable
from omruntime.manifest import ModelFacts
from omruntime.sampling.token_matcher import TokenMask, TokenMatcher

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

TOKENIZER_FILE = "tokenizer/tokenizer.json"
# Between two signs: a few spaces, or one line break and an indent, of eight levels at most. More
# says nothing, and small models fall into endless blank lines.
_WHITESPACE = r" {1,4}|\n[ \t]{0,32}"
# Around a free beginning.
_GAP = r"[ \n]{0,4}"
# Escapes of printable signs would let a key that the schema names come twice in two spellings.
_ESCAPES = 'nrbtf\\"'
# States are kept as long as the grammar and take 1 to 2 kB each; ordinary schemas have hundreds.
_MAX_LEXER_STATES = 20_000
# The library's own limit refuses objects of 500 optional properties, which exist; 2,000 of them
# take 15 ms for the mask at their beginning, in which the engine waits.
_MAX_ITEMS_IN_ROW = 8_000
_MAX_ERROR_CHARS = 300
# How the library begins the error of a grammar without any text.
_NOTHING_MATCHES = "NoExtension"


def open_compiler(bundle: Path, model: ModelFacts) -> LLGuidanceCompiler:
    """Read a bundle's vocabulary; takes about a second.

    Raises:
        NotBuiltInError: The library is not installed.
        PreconditionError: The bundle has no tokenizer that the library can read.
    """
    try:
        import llguidance
    except ImportError as error:
        raise NotBuiltInError(
            "constraint needs the library llguidance, which is not installed on the server: "
            "pip install '.[constraints]' in omserve's folder"
        ) from error
    try:
        text = (bundle / TOKENIZER_FILE).read_text(encoding="utf-8")
        tokenizer = _read_tokenizer(llguidance.LLTokenizer, text, model.eos_token_ids)
    except (OSError, ValueError) as error:
        raise PreconditionError(
            f"constraint cannot be followed with this bundle's {TOKENIZER_FILE}: {error}"
        ) from error
    known = tuple(i for i in model.eos_token_ids if i < tokenizer.vocab_size)
    layout = MaskLayout(model.vocab_size, known, tuple(tokenizer.eos_tokens))
    return LLGuidanceCompiler(tokenizer, layout)


def _read_tokenizer(
    read: type[LLTokenizer], text: str, eos_token_ids: tuple[int, ...]
) -> LLTokenizer:
    """The library's tokenizer, with the end tokens that it knows; each try takes a while."""
    if eos_token_ids:
        try:
            return read(text, eos_token=list(eos_token_ids))
        except ValueError as error:
            if "out of range" not in str(error):
                raise
    tokenizer = read(text)
    known = [i for i in eos_token_ids if i < tokenizer.vocab_size]
    return read(text, eos_token=known) if known else tokenizer


@dataclass(frozen=True, slots=True)
class MaskLayout:
    """From the library's masks, as wide as the tokenizer, to masks as wide as the logits.

    Attributes:
        vocab_size: Width of the logits; ids that the tokenizer lacks are never allowed.
        eos_token_ids: Of the tokenizer's ids, those that end an answer.
        library_eos_token_ids: Those that the library takes for ends; it needs one, and guesses.
    """

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    library_eos_token_ids: tuple[int, ...]

    def new_mask(self) -> TokenMask:
        """Nothing is allowed."""
        return np.zeros(self.vocab_size, np.bool_)

    def fill(self, mask: TokenMask, bits: bytes, may_end: bool) -> None:
        """Write one of the library's masks, with or without the end tokens."""
        flags = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
        width = min(len(flags), len(mask))
        mask[:width] = flags[:width]
        mask[list(self.library_eos_token_ids)] = False
        mask[list(self.eos_token_ids)] = may_end


class LLGuidanceCompiler:
    """Compiles for one vocabulary; for one thread."""

    def __init__(self, tokenizer: LLTokenizer, layout: MaskLayout) -> None:
        self._tokenizer = tokenizer
        self._layout = layout

    def compile(self, constraint: Constraint) -> LLGuidanceGrammar:
        """See `GrammarCompiler`."""
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            max_items_in_row=_MAX_ITEMS_IN_ROW,
            max_lexer_states=_MAX_LEXER_STATES,
            verbose_errors=False,
        )
        source = source_of(constraint)
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=limits)
        what = f"constraint.{constraint.kind}"
        if matcher.is_error():
            raise RequestError(f"{what} cannot be compiled: {_described(matcher.get_error())}")
        warnings = matcher.get_grammar_warnings()
        if warnings:
            raise RequestError(f"{what} is not enforced in full: {_shortened(warnings[0])}")
        self._require_satisfiable(what, matcher.deep_copy())
        return LLGuidanceGrammar(matcher, self._layout)

    def _require_satisfiable(self, what: str, matcher: LLMatcher) -> None:
        """Refuse a grammar that no text belongs to, as far as its beginning tells."""
        mask = self._layout.new_mask()
        self._layout.fill(mask, matcher.compute_bitmask(), may_end=False)
        error = matcher.get_error()
        if error and _NOTHING_MATCHES not in error:
            raise RequestError(f"{what} is too complex: {_shortened(error)}")
        if not mask.any():
            which = "the empty answer alone" if matcher.is_accepting() else "no answer"
            raise RequestError(f"{what} allows {which}")


class LLGuidanceGrammar:
    """See `Grammar`. The matchers share what they find out about its lexemes."""

    def __init__(self, origin: LLMatcher, layout: MaskLayout) -> None:
        self.is_intact = True
        self.layout = layout
        self._origin = origin

    def new_matcher(self) -> TokenMatcher:
        """See `Grammar`."""
        return LLGuidanceMatcher(self._origin.deep_copy(), self)


class LLGuidanceMatcher:
    """See `TokenMatcher`."""

    def __init__(self, matcher: LLMatcher, grammar: LLGuidanceGrammar) -> None:
        self._matcher = matcher
        self._grammar = grammar
        self._mask = grammar.layout.new_mask()
        self._is_finished = self._is_complete()

    @property
    def is_finished(self) -> bool:
        """See `TokenMatcher`."""
        return self._is_finished

    def allowed(self) -> TokenMask:
        """See `TokenMatcher`."""
        bits = self._matcher.compute_bitmask()
        self._require_intact()
        self._grammar.layout.fill(self._mask, bits, self._matcher.is_accepting())
        return self._mask

    def accept(self, token_id: int) -> None:
        """See `TokenMatcher`; an error shows with the next mask."""
        self._matcher.consume_token(token_id)
        self._is_finished = self._is_complete()

    def _is_complete(self) -> bool:
        matcher = self._matcher
        return matcher.is_stopped() and not matcher.is_error() and matcher.is_accepting()

    def _require_intact(self) -> None:
        if self._matcher.is_error():
            self._grammar.is_intact = False
            text = _shortened(self._matcher.get_error())
            raise RequestError(f"the constraint cannot be followed further: {text}")


def source_of(constraint: Constraint) -> str:
    """The constraint in the library's own words.

    Raises:
        RequestError: It holds what is not enforced.
    """
    from llguidance import LLMatcher

    if constraint.json_schema is not None:
        return _json_source(read_schema(constraint.json_schema), constraint)
    if constraint.json_object:
        return _json_source({"type": "object"}, constraint)
    if constraint.grammar is not None:
        require_built_in(constraint.grammar)
        return json.dumps({"grammars": [{"lark_grammar": constraint.grammar}]})
    if constraint.regex is not None:
        require_portable("regex", constraint.regex)
        return LLMatcher.grammar_from_regex(constraint.regex)
    assert constraint.choices is not None
    return LLMatcher.grammar_from_regex(regex_of_choices(constraint.choices))


def _json_source(schema: dict[str, Any], constraint: Constraint) -> str:
    options = {"whitespace_pattern": _WHITESPACE, "json_allowed_escapes": _ESCAPES}
    answer: dict[str, Any] = {"json_schema": {**schema, "x-guidance": options}}
    if not constraint.free_until:
        return json.dumps({"grammars": [answer]})
    free = {"lark_grammar": _free_beginning(constraint)}
    return json.dumps({"grammars": [free, {"name": "answer", **answer}]})


def _free_beginning(constraint: Constraint) -> str:
    """Lark that lets everything through up to the first end mark, then the grammar `answer`."""
    free_from, free_until = (
        re.escape(mark).replace("/", r"\/")
        for mark in (constraint.free_from, constraint.free_until)
    )
    start = "start: free gap @answer" + (" | @answer" if free_from else "")
    free = f"free[lazy]: /{_GAP if free_from else ''}{free_from}(?s:.*){free_until}/"
    return "\n".join([start, free, f"gap: /{_GAP}/", ""])


def _described(error: str) -> str:
    """The library's words, after ours where they do not name the keyword."""
    if "if regex is empty" in error:
        error = f"pattern and other limits of one string are too complex together: {error}"
    if "coerce_one_of" in error:
        return "oneOf needs schemas that exclude each other by type or by a const; use anyOf"
    return _shortened(error)


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_ERROR_CHARS else line[: _MAX_ERROR_CHARS - 3] + "..."
