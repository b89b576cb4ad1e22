"""Constraints in the engine: tokens that fit, ends where they are complete, nobody else disturbed.

The toy model's tokens are 60 letters and digits and an end token, so that its answers are text.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models

from omruntime.async_engine import AsyncEngine
from omruntime.constraint import Constraint
from omruntime.device import open_device
from omruntime.engine import Engine
from omruntime.errors import (
    DuplicateRequestError,
    PreconditionError,
    RequestError,
    ShuttingDownError,
)
from omruntime.grammar.llguidance_compiler import open_compiler
from omruntime.llm import LLM
from omruntime.manifest import Manifest
from omruntime.outputs import TokenDelta
from omruntime.sampling.token_matcher import Grammar
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason, Request
from omruntime.settings import EngineSettings
from omruntime.token_stream import merge
from tests.omruntime.test_async_engine import read_all, running
from tests.omruntime.test_engine import GREEDY
from tests.omruntime.toy_model import EOS_TOKEN_ID, toy_answer
from tests.omruntime.worker.serving import serving
from tests.server.tiny_tokenizers import write_tokenizer

LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwx"
SEEDED = replace(GREEDY, temperature=1.5, seed=5, ignore_eos=False)


def letters_backend() -> tokenizers.Tokenizer:
    vocab = {letter: index for index, letter in enumerate([*LETTERS, "<end>"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True)])
    return backend


@pytest.fixture(scope="session")
def spelling_bundle(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy bundle with a tokenizer."""
    bundle = tmp_path_factory.mktemp("spelling") / "bundle"
    shutil.copytree(toy_bundle, bundle)
    write_tokenizer(bundle / "tokenizer", letters_backend())
    return bundle


def following(regex: str, params: SamplingParams = SEEDED) -> SamplingParams:
    return replace(params, constraint=Constraint(regex=regex), ignore_eos=False)


def text_of(answer: TokenDelta) -> str:
    return "".join(LETTERS[i] for i in answer.token_ids if i != EOS_TOKEN_ID)


def run_all(engine: Engine, requests: list[Request]) -> dict[str, TokenDelta]:
    answers: dict[str, TokenDelta] = {}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for request_id, delta in engine.step():
            before = answers.get(request_id)
            answers[request_id] = delta if before is None else merge(before, delta)
        engine.check()
    return answers


def engine_over(bundle: Path, **settings: int) -> Engine:
    return Engine.open(bundle, EngineSettings(num_threads=1, **settings))  # type: ignore[arg-type]


def test_answers_match_and_stop_where_they_are_complete(spelling_bundle: Path) -> None:
    engine = engine_over(spelling_bundle)
    patterns = {"a": "[0-9]{5}", "b": "(?:yes|no)", "c": "[A-F]+", "d": "x*"}
    requests = [Request(name, (3, 4), following(p)) for name, p in patterns.items()]
    answers = run_all(engine, [*requests, Request("free", (3, 4), GREEDY)])
    engine.close()
    for name, pattern in patterns.items():
        assert re.fullmatch(pattern, text_of(answers[name])), name
    assert answers["a"].finish_reason is FinishReason.STOP
    assert len(answers["a"].token_ids) == 5
    assert answers["b"].finish_reason is FinishReason.STOP
    assert answers["free"].token_ids == toy_answer((3, 4), GREEDY.max_new_tokens or 0)


def test_a_limit_inside_of_the_answer_is_length(spelling_bundle: Path) -> None:
    engine = engine_over(spelling_bundle)
    params = replace(following("[0-9]{9}"), max_new_tokens=4)
    answer = run_all(engine, [Request("r", (1,), params)])["r"]
    engine.close()
    assert answer.finish_reason is FinishReason.LENGTH
    assert re.fullmatch("[0-9]{4}", text_of(answer))


def test_the_last_allowed_token_may_complete_the_answer(spelling_bundle: Path) -> None:
    engine = engine_over(spelling_bundle)
    params = replace(following("[0-9]{4}"), max_new_tokens=4)
    answer = run_all(engine, [Request("r", (1,), params)])["r"]
    engine.close()
    assert answer.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("wishes", "wanted"),
    [
        ({"logit_bias": {10: 100.0, 3: 50.0}}, "33"),
        ({"banned_token_ids": (0, 1, 2)}, "33"),
        ({"allowed_token_ids": (7, 30)}, "77"),
        ({"logit_bias": {4: 9.0, 5: 8.0}, "presence_penalty": 2.0}, "45"),
    ],
)
def test_other_wishes_choose_among_what_is_allowed(
    spelling_bundle: Path, wishes: dict[str, object], wanted: str
) -> None:
    engine = engine_over(spelling_bundle)
    # Of the toy's logits one is 10; that its token is allowed is excluded by the prompt.
    params = replace(following("[0-9]{2}", GREEDY), **wishes)  # type: ignore[arg-type]
    answer = run_all(engine, [Request("r", (50,), params)])["r"]
    engine.close()
    assert text_of(answer) == wanted


def test_min_new_tokens_holds_back_the_end_but_not_completion(spelling_bundle: Path) -> None:
    engine = engine_over(spelling_bundle)
    long = replace(following("a+"), min_new_tokens=8, max_new_tokens=8)
    short = replace(following("ab"), min_new_tokens=8)
    answers = run_all(engine, [Request("long", (1,), long), Request("short", (1,), short)])
    engine.close()
    assert text_of(answers["long"]) == "a" * 8
    assert text_of(answers["short"]) == "ab"
    assert answers["short"].finish_reason is FinishReason.STOP


def test_nothing_left_ends_that_answer_with_an_error(spelling_bundle: Path) -> None:
    engine = engine_over(spelling_bundle)
    params = replace(following("[0-9]{3}"), allowed_token_ids=(40,))
    answers = run_all(engine, [Request("r", (1,), params), Request("free", (3, 4), GREEDY)])
    engine.close()
    assert answers["r"].finish_reason is FinishReason.ERROR
    assert "constraint, allowed_token_ids" in answers["r"].error
    assert answers["r"].is_refusal
    assert answers["free"].finish_reason is FinishReason.LENGTH


def test_preemption_batching_and_order_change_no_token(spelling_bundle: Path) -> None:
    """BL-28 under a constraint: the matcher's state is a function of the answer's tokens."""
    wishes = [following("[a-x]{30}", replace(SEEDED, seed=i, max_new_tokens=30)) for i in range(8)]
    requests = [Request(f"r{i}", (i + 1, 2, 3), params) for i, params in enumerate(wishes)]
    alone = {}
    roomy = engine_over(spelling_bundle)
    for request in requests:
        alone |= run_all(roomy, [request])
    roomy.close()
    tight = engine_over(spelling_bundle, num_blocks=24)
    together = run_all(tight, requests)
    assert tight.load().num_preemptions > 0
    tight.close()
    assert {k: v.token_ids for k, v in together.items()} == {
        k: v.token_ids for k, v in alone.items()
    }


def test_logprobs_are_those_of_the_model(spelling_bundle: Path) -> None:
    engine = engine_over(spelling_bundle)
    params = replace(following("[0-9]", GREEDY), logprobs=1)
    answer = run_all(engine, [Request("r", (50,), params)])["r"]
    engine.close()
    (entry,) = answer.logprobs
    # The toy's favourite has logit 10 and is a letter; every digit has logit 0.
    ((best_id, best),) = entry.top
    assert best_id == toy_answer((50,), 1)[0]
    assert entry.logprob == pytest.approx(best - 10.0)


def test_several_answers_follow_one_grammar(spelling_bundle: Path) -> None:
    with LLM(spelling_bundle, EngineSettings(num_threads=1)) as llm:
        params = replace(following("[0-9]{6}"), n=4)
        outputs = llm.generate([(1, 2), (3,)], params, progress=False)
    texts = ["".join(LETTERS[i] for i in output.token_ids) for output in outputs]
    assert all(re.fullmatch("[0-9]{6}", text) for text in texts)
    assert len(set(texts)) > 4


def test_a_refused_constraint_generates_nothing(spelling_bundle: Path) -> None:
    with LLM(spelling_bundle, EngineSettings(num_threads=1)) as llm:
        with pytest.raises(RequestError, match=r"constraint\.regex allows no answer"):
            llm.generate([(1,)], [following("[^\\s\\S]")], progress=False)
        assert llm.load().num_waiting == 0


def test_a_bundle_without_a_tokenizer_is_named(toy_bundle: Path) -> None:
    engine = engine_over(toy_bundle)
    with pytest.raises(PreconditionError, match=r"tokenizer\.json"):
        engine.add(Request("r", (1,), following("a")))
    engine.close()


def test_streams_get_their_answers_or_their_refusals(spelling_bundle: Path) -> None:
    async def main() -> None:
        async with running(spelling_bundle) as engine:

            async def ask(number: int, regex: str) -> str:
                request = Request(f"r{number}", (number + 1,), following(regex))
                return text_of(await read_all(await engine.submit(request)))

            asked = [ask(i, "[^\\s\\S]" if i % 3 == 0 else "[0-9]{3}") for i in range(9)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            for number, answer in enumerate(answers):
                if number % 3 == 0:
                    assert isinstance(answer, RequestError)
                else:
                    assert re.fullmatch("[0-9]{3}", str(answer))

    asyncio.run(main())


class HeldEngine(Engine):
    """Has every constraint compiled when the test says so."""

    held: Future[Grammar]

    def prepare(self, request: Request) -> Future[Grammar] | None:
        return None if request.params.constraint is None else self.held


@asynccontextmanager
async def holding(bundle: Path) -> AsyncIterator[tuple[AsyncEngine, Future[Grammar]]]:
    settings = EngineSettings(num_threads=1)
    known, held = AsyncEngine.open(bundle, settings), Future[Grammar]()

    def open_engine(_on_stage: Callable[[str], None]) -> Engine:
        engine = HeldEngine(open_device("cpu", 1, 60.0), bundle, settings)
        engine.held = held
        return engine

    engine = AsyncEngine(open_engine, known.manifest, known.limits)
    await asyncio.to_thread(engine.start, lambda _line: None)
    try:
        yield engine, held
    finally:
        await asyncio.to_thread(engine.stop)


def grammar_of(bundle: Path, regex: str) -> Grammar:
    return open_compiler(bundle, Manifest.read(bundle).model).compile(Constraint(regex=regex))


def test_others_go_on_while_a_constraint_is_compiled(spelling_bundle: Path) -> None:
    async def main() -> None:
        async with holding(spelling_bundle) as (engine, held):
            waiting = asyncio.create_task(engine.submit(Request("w", (1,), following("[0-9]"))))
            free = await read_all(await engine.submit(Request("free", (3, 4), GREEDY)))
            assert free.finish_reason is FinishReason.LENGTH
            assert not waiting.done()
            held.set_result(grammar_of(spelling_bundle, "[0-9]"))
            assert text_of(await read_all(await waiting)) in LETTERS[:10]

    asyncio.run(main())


def test_a_caller_who_left_meanwhile_leaves_nothing(spelling_bundle: Path) -> None:
    async def main() -> None:
        async with holding(spelling_bundle) as (engine, held):
            leaving = asyncio.create_task(engine.submit(Request("w", (1,), following("x*"))))
            await asyncio.sleep(0)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            held.set_result(grammar_of(spelling_bundle, "x*"))
            # The id is free again once the cancellation was taken over.
            while True:
                try:
                    stream = await engine.submit(Request("w", (3, 4), GREEDY))
                    break
                except DuplicateRequestError:
                    await asyncio.sleep(0)
            await read_all(stream)
            assert engine.load().num_running == engine.load().num_waiting == 0

    asyncio.run(main())


def test_stopping_meanwhile_refuses_the_request(spelling_bundle: Path) -> None:
    async def main() -> None:
        async with holding(spelling_bundle) as (engine, held):
            waiting = asyncio.create_task(engine.submit(Request("w", (1,), following("x*"))))
            await asyncio.sleep(0)
            await asyncio.to_thread(engine.stop)
            held.set_result(grammar_of(spelling_bundle, "x*"))
            with pytest.raises(ShuttingDownError):
                await waiting

    asyncio.run(main())


def test_a_device_process_compiles_and_refuses_too(spelling_bundle: Path) -> None:
    async def main() -> None:
        async with serving(spelling_bundle) as (engine, _events):
            asked = [Request(f"r{i}", (i + 1,), following("[0-9]{3}")) for i in range(4)]
            free = await engine.submit(Request("free", (3, 4), GREEDY))
            streams = await asyncio.gather(*map(engine.submit, asked))
            for answer in [await read_all(stream) for stream in streams]:
                assert re.fullmatch("[0-9]{3}", text_of(answer))
                assert answer.finish_reason is FinishReason.STOP
            assert (await read_all(free)).finish_reason is FinishReason.LENGTH
            with pytest.raises(RequestError, match="allows no answer"):
                await engine.submit(Request("bad", (1,), following("[^\\s\\S]")))

    asyncio.run(main())
