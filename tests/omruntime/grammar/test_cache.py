"""GrammarCache: one compilation for equal constraints, in its own thread, with bounds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from omruntime.constraint import Constraint
from omruntime.errors import NotBuiltInError, OverloadedError, RequestError, ShuttingDownError
from omruntime.grammar import cache as cache_module
from omruntime.grammar.cache import MAX_GRAMMARS, GrammarCache
from omruntime.sampling.token_matcher import TokenMatcher

TIMEOUT_S = 20


@dataclass
class FakeGrammar:
    text: str
    is_intact: bool = True

    def new_matcher(self) -> TokenMatcher:
        raise NotImplementedError


@dataclass
class FakeCompiler:
    """Compiles regexes to their text; waits for the gate, fails for `bad` and `panic`."""

    gate: threading.Event = field(default_factory=threading.Event)
    compiled: list[str] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    def compile(self, constraint: Constraint) -> FakeGrammar:
        assert self.gate.wait(TIMEOUT_S)
        assert constraint.regex is not None
        self.compiled.append(constraint.regex)
        self.threads.add(threading.get_ident())
        if constraint.regex == "bad":
            raise RequestError("constraint.regex allows no answer")
        if constraint.regex == "panic":
            raise KeyboardInterrupt  # as a panic of the library is, no Exception
        return FakeGrammar(constraint.regex)

    def rest(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        self.gate.set()


@pytest.fixture
def compiler() -> Iterator[FakeCompiler]:
    made = FakeCompiler()
    made.gate.set()
    yield made
    made.gate.set()


def text_of(cache: GrammarCache, regex: str) -> str:
    grammar = cache.submit(Constraint(regex=regex)).result(TIMEOUT_S)
    assert isinstance(grammar, FakeGrammar)
    return grammar.text


def test_equal_constraints_are_compiled_once_and_elsewhere(compiler: FakeCompiler) -> None:
    cache = GrammarCache(lambda: compiler)
    compiler.gate.clear()
    futures = [cache.submit(Constraint(regex="a")) for _ in range(5)]
    assert not any(future.done() for future in futures)
    compiler.gate.set()
    assert len({id(future.result(TIMEOUT_S)) for future in futures}) == 1
    assert text_of(cache, "b") == "b"
    assert compiler.compiled == ["a", "b"]
    assert threading.get_ident() not in compiler.threads
    assert len(compiler.threads) == 1


def test_a_refusal_is_told_and_not_kept(compiler: FakeCompiler) -> None:
    cache = GrammarCache(lambda: compiler)
    for _ in range(2):
        with pytest.raises(RequestError, match="allows no answer") as caught:
            text_of(cache, "bad")
        assert caught.value.param == "constraint"
    assert compiler.compiled == ["bad", "bad"]


def test_a_panic_refuses_its_own_constraint_only(compiler: FakeCompiler) -> None:
    cache = GrammarCache(lambda: compiler)
    with pytest.raises(RequestError, match=r"constraint\.regex failed to compile"):
        text_of(cache, "panic")
    assert text_of(cache, "a") == "a"


def test_an_absent_library_refuses_by_name() -> None:
    def absent() -> FakeCompiler:
        raise NotBuiltInError("pip install 'omserve[constraints]'")

    cache = GrammarCache(absent)
    for _ in range(2):
        with pytest.raises(NotBuiltInError, match="pip install"):
            text_of(cache, "a")


def test_the_latest_used_stay(compiler: FakeCompiler) -> None:
    cache = GrammarCache(lambda: compiler)
    text_of(cache, "first")
    for number in range(MAX_GRAMMARS - 1):
        text_of(cache, f"r{number}")
    text_of(cache, "first")
    text_of(cache, "one more")
    assert len(cache) == MAX_GRAMMARS
    text_of(cache, "first")
    assert compiler.compiled.count("first") == 1
    text_of(cache, "r0")
    assert compiler.compiled.count("r0") == 2


def test_large_constraints_leave_room_for_fewer(
    compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grammar takes memory as its text is long."""
    large = [letter * 1_000 for letter in "abc"]
    monkeypatch.setattr(cache_module, "MAX_CHARS", 2_500)
    cache = GrammarCache(lambda: compiler)
    for regex in ("small", *large):
        text_of(cache, regex)
    assert len(cache) == 2
    for regex in large[1:]:
        text_of(cache, regex)
    assert compiler.compiled == ["small", *large]


def test_too_many_at_once_are_refused(
    compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "MAX_WAITING", 3)
    cache = GrammarCache(lambda: compiler)
    compiler.gate.clear()
    for number in range(3):
        cache.submit(Constraint(regex=f"r{number}"))
    # One more fits when the thread has taken the first by now.
    with suppress(OverloadedError):
        cache.submit(Constraint(regex="r3"))
    with pytest.raises(OverloadedError, match=r"retry after \d"):
        cache.submit(Constraint(regex="r4"))
    compiler.gate.set()
    assert text_of(cache, "r0") == "r0"


def test_a_worn_grammar_is_compiled_anew(compiler: FakeCompiler) -> None:
    cache = GrammarCache(lambda: compiler)
    text_of(cache, "a")
    cache.submit(Constraint(regex="a")).result(TIMEOUT_S).is_intact = False
    text_of(cache, "a")
    assert compiler.compiled == ["a", "a"]


def test_closing_refuses_what_waits_and_what_comes(compiler: FakeCompiler) -> None:
    cache = GrammarCache(lambda: compiler)
    compiler.gate.clear()
    futures = [cache.submit(Constraint(regex=f"r{number}")) for number in range(3)]
    cache.close()
    with pytest.raises(ShuttingDownError):
        futures[-1].result(TIMEOUT_S)
    with pytest.raises(ShuttingDownError):
        cache.submit(Constraint(regex="a"))
    cache.close()


def test_closing_what_was_never_used_does_nothing(compiler: FakeCompiler) -> None:
    GrammarCache(lambda: compiler).close()
    assert not compiler.compiled
