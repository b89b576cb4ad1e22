"""Logprobs of the prompt: what teacher-forced decoding gives, whatever the scheduling."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from omruntime.engine import Engine
from omruntime.errors import PromptTooLongError
from omruntime.outputs import TokenDelta
from omruntime.sequence import FinishReason, Request
from omruntime.step import ScoredToken
from tests.omruntime.test_engine import (
    GREEDY,
    SCHEDULES,
    FailingDevice,
    open_engine,
    prompts,
    run_to_end,
)
from tests.omruntime.toy_model import (
    LARGE_VOCAB_SIZE,
    LONG_MODEL_LEN,
    MAX_MODEL_LEN,
    toy_answer,
    write_long_toy_bundle,
)

SCORED = replace(GREEDY, prompt_logprobs=3)
SCORE_ONLY = replace(SCORED, max_new_tokens=0)


def likely_prompt(length: int) -> tuple[int, ...]:
    """Tokens of which every other is the model's own choice."""
    tokens = [7]
    while len(tokens) < length:
        (own,) = toy_answer(tuple(tokens), 1)
        tokens += [own, (own + 5) % 59 + 1]
    return tuple(tokens[:length])


@pytest.fixture(scope="module")
def reference(toy_bundle: Path) -> dict[tuple[int, ...], tuple[ScoredToken, ...]]:
    """By teacher-forced decoding, a token at a time; ranks from all that are listed."""
    wanted = [likely_prompt(30), likely_prompt(17), *prompts(10)[2:9]]
    found = {}
    with open_engine(toy_bundle, enable_prefix_cache=False) as engine:
        for prompt in wanted:
            for end in range(1, len(prompt)):
                params = replace(
                    GREEDY, max_new_tokens=1, logprobs=3, allowed_token_ids=(prompt[end],)
                )
                engine.add(Request(str(end), prompt[:end], params))
                if end % 8 == 0:
                    found |= {(prompt, i): d for i, d in run_to_end(engine).items()}
            found |= {(prompt, i): d for i, d in run_to_end(engine).items()}
    return {
        prompt: tuple(
            ScoredToken(logprobs, 1 if logprobs.logprob == logprobs.top[0][1] else 2)
            for end in range(1, len(prompt))
            for logprobs in found[prompt, str(end)].logprobs
        )
        for prompt in wanted
    }


Reference = dict[tuple[int, ...], tuple[ScoredToken, ...]]


@pytest.mark.parametrize("name", [*SCHEDULES, "deterministic"])
def test_scores_equal_teacher_forced_decoding(
    toy_bundle: Path, reference: Reference, name: str
) -> None:
    """Beside others; and the answers go on as without scoring."""
    schedule = SCHEDULES.get(name, {"deterministic": True, "num_blocks": 18})
    with open_engine(toy_bundle, **schedule) as engine:
        for i, prompt in enumerate(reference):
            engine.add(Request(f"scored {i}", prompt, SCORED))
            engine.add(Request(f"plain {i}", prompt[1:], GREEDY))
            engine.add(Request(f"only {i}", prompt, SCORE_ONLY))
        answers = run_to_end(engine)
        if name == "preempted":
            assert engine.load().num_preemptions > 0
    for i, (prompt, scores) in enumerate(reference.items()):
        assert answers[f"scored {i}"].prompt_logprobs == scores
        assert answers[f"scored {i}"].token_ids == toy_answer(prompt, 20)
        assert answers[f"plain {i}"].token_ids == toy_answer(prompt[1:], 20)
        assert answers[f"plain {i}"].prompt_logprobs == ()
        only = answers[f"only {i}"]
        assert (only.prompt_logprobs, only.token_ids) == (scores, ())
        assert only.finish_reason is FinishReason.LENGTH
    assert {s.rank for scores in reference.values() for s in scores} == {1, 2}


def test_every_number_of_alternatives(toy_bundle: Path) -> None:
    prompt = likely_prompt(9)
    with open_engine(toy_bundle) as engine:
        for k in range(21):
            engine.add(Request(str(k), prompt, replace(SCORE_ONLY, prompt_logprobs=k)))
        answers = run_to_end(engine)
    most = answers["20"].prompt_logprobs
    for k in range(21):
        scores = answers[str(k)].prompt_logprobs
        assert [len(s.logprobs.top) for s in scores] == [k] * 8
        assert [s.logprobs.top for s in scores] == [s.logprobs.top[:k] for s in most]
        assert [(s.logprobs.logprob, s.rank) for s in scores] == [
            (s.logprobs.logprob, s.rank) for s in most
        ]


def test_scores_come_before_the_answer_in_slices_of_a_step(toy_bundle: Path) -> None:
    with open_engine(toy_bundle) as engine:
        engine.add(Request("r", likely_prompt(40), SCORED))
        deltas = list(steps(engine))
    sizes = [len(delta.prompt_logprobs) for delta in deltas]
    assert sizes[:3] == [16, 16, 7], "as many positions as the largest decode bucket has rows"
    assert sum(sizes) == 39
    assert [len(delta.token_ids) for delta in deltas[:3]] == [0, 0, 1]


def steps(engine: Engine) -> Iterator[TokenDelta]:
    """The deltas of the only request."""
    while engine.has_work:
        yield from (delta for _, delta in engine.step())


@pytest.mark.parametrize("params", [SCORED, SCORE_ONLY], ids=["answered", "scored only"])
def test_one_token_has_nothing_to_score(toy_bundle: Path, params: object) -> None:
    assert isinstance(params, type(GREEDY))
    with open_engine(toy_bundle) as engine:
        engine.add(Request("r", (7,), params))
        answer = run_to_end(engine)["r"]
    assert answer.prompt_logprobs == ()
    assert answer.token_ids == (() if params is SCORE_ONLY else toy_answer((7,), 20))
    assert answer.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("first", [0, 1, 2, 16, 29, 30])
def test_only_what_follows_is_scored_when_asked(
    toy_bundle: Path, reference: Reference, first: int
) -> None:
    prompt = likely_prompt(30)
    with open_engine(toy_bundle) as engine:
        engine.add(Request("r", prompt, SCORE_ONLY, score_from=first))
        assert run_to_end(engine)["r"].prompt_logprobs == reference[prompt][max(0, first - 1) :]


def test_cached_beginnings_are_scored_all_the_same(toy_bundle: Path, reference: Reference) -> None:
    prompt = likely_prompt(30)
    with open_engine(toy_bundle) as engine:
        for name in ("cold", "warm"):
            engine.add(Request(name, prompt, SCORED))
            answer = run_to_end(engine)[name]
            assert answer.prompt_logprobs == reference[prompt]
        assert answer.num_cached_tokens == 28


def test_a_request_may_bypass_the_prefix_cache(toy_bundle: Path) -> None:
    prompt = likely_prompt(30)
    with open_engine(toy_bundle) as engine:
        for name, bypasses in (("a", True), ("b", False), ("c", True), ("d", False)):
            engine.add(Request(name, prompt, GREEDY, bypasses_prefix_cache=bypasses))
            answer = run_to_end(engine)[name]
            assert answer.token_ids == toy_answer(prompt, 20)
            assert answer.num_cached_tokens == (28 if name == "d" else 0), name
        assert engine.counters().prefix_cache.num_hits == 1


@pytest.mark.parametrize("num_steps", range(1, 8))
def test_abort_in_the_middle_frees_all_blocks(toy_bundle: Path, num_steps: int) -> None:
    with open_engine(toy_bundle, enable_prefix_cache=False) as engine:
        engine.add(Request("r", likely_prompt(40), SCORED))
        for _ in range(num_steps):
            engine.step()
        assert engine.load().num_referenced_blocks > 0
        ended = engine.abort("r")
        assert ended is not None
        assert ended[1].finish_reason is FinishReason.ABORT
        assert engine.load().num_referenced_blocks == 0
        assert engine.step() == []
        engine.check()


def test_a_failed_step_ends_it_once(toy_bundle: Path) -> None:
    device = FailingDevice(set())
    with open_engine(toy_bundle, device) as engine:
        engine.add(Request("r", likely_prompt(40), SCORED))
        while not any(delta.prompt_logprobs for _, delta in engine.step()):
            pass
        device.failing_runs = {device.num_runs + 1}
        ((_, last),) = engine.step()
        assert last.finish_reason is FinishReason.ERROR
        assert run_to_end(engine) == {}
        assert engine.load().num_finished["error"] == 1


def test_without_an_answer_the_prompt_may_fill_the_model(toy_bundle: Path) -> None:
    """BL-30: and not one token more; a pool that is full to the last slot is enough."""
    prompt = likely_prompt(MAX_MODEL_LEN)
    with open_engine(toy_bundle, num_blocks=17, max_num_seqs=2) as engine:
        for name in ("first", "second"):
            engine.add(Request(name, prompt, SCORE_ONLY))
        answers = run_to_end(engine)
        assert [len(a.prompt_logprobs) for a in answers.values()] == [MAX_MODEL_LEN - 1] * 2
        with pytest.raises(PromptTooLongError, match="at most 64 can be scored"):
            engine.add(Request("longer", (*prompt, 1), SCORE_ONLY))
        with pytest.raises(PromptTooLongError, match="at most 63 leave room for an answer"):
            engine.add(Request("answered", prompt, SCORED))


def test_a_long_prompt_takes_little_memory(tmp_path: Path) -> None:
    """Logits are read at once: nobody keeps [prompt, vocabulary]."""
    prompt = (1, 0) * (LONG_MODEL_LEN // 2)
    with open_engine(write_long_toy_bundle(tmp_path / "bundle")) as engine:
        params = replace(SCORE_ONLY, prompt_logprobs=0)
        engine.add(Request("warm-up", prompt[:40], params))
        run_to_end(engine)
        engine.add(Request("r", prompt, params))
        tracemalloc.start()
        try:
            deltas = list(steps(engine))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert max(len(delta.prompt_logprobs) for delta in deltas) == 16
    scores = [score for delta in deltas for score in delta.prompt_logprobs]
    assert len(scores) == LONG_MODEL_LEN - 1
    likeliest = [sum(range(1, end + 1, 2)) % LARGE_VOCAB_SIZE for end in range(1, LONG_MODEL_LEN)]
    assert [s.rank == 1 for s in scores] == [
        own == token for own, token in zip(likeliest, prompt[1:], strict=True)
    ]
    assert peak < 4 * LONG_MODEL_LEN * LARGE_VOCAB_SIZE / 8, f"{peak:,} bytes at once"
