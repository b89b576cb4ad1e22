"""TextGenerator: the life of a request between front end and engine."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

import pytest

from omruntime.errors import (
    DuplicateRequestError,
    OverloadedError,
    PromptTooLongError,
    RequestError,
)
from omruntime.manifest import SamplingDefaults
from omruntime.outputs import TokenDelta
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.turn import Scheduling
from omruntime.sequence import FinishReason, Request
from server.generate import TextGenerator
from server.text import ChatMessage, TextDelta, TextRequest, Usage
from tests.server.scripted_engine import TIMINGS, Script, ScriptedEngine, model_facts, one_by_one
from tests.server.tiny_tokenizers import CHAT_TEMPLATE, byte_level_backend, tokenizer_of

TOKENIZER = tokenizer_of(byte_level_backend(), CHAT_TEMPLATE)
MODEL = model_facts(TOKENIZER.vocab_size, SamplingDefaults(temperature=0.0))


def says(text: str) -> Script:
    """Every answer is this text and the end token."""
    return lambda _request: one_by_one([*TOKENIZER.encode_text(text), 2], FinishReason.STOP)


def says_its_id(request: Request) -> list[TokenDelta]:
    text = f"I am {request.request_id}."
    return one_by_one(TOKENIZER.encode_text(text), FinishReason.LENGTH)


def talks_on(_request: Request) -> list[TokenDelta]:
    """Ten tokens and no end."""
    return [TokenDelta((i,)) for i in TOKENIZER.encode_text("0123456789")]


def generator_of(script: Script) -> tuple[TextGenerator, ScriptedEngine]:
    engine = ScriptedEngine(script)
    return TextGenerator(engine, TOKENIZER, MODEL, max_model_len=64), engine


def request_of(params: SamplingParams | None = None, request_id: str = "r") -> TextRequest:
    return TextRequest(request_id, params or SamplingParams(), text="the")


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def timed() -> None:
        await asyncio.wait_for(work(), timeout=30)

    asyncio.run(timed())


async def read(generator: TextGenerator, request: TextRequest) -> list[TextDelta]:
    return [delta async for delta in generator.stream(request)]


def joined(deltas: list[TextDelta], index: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.index == index)


def test_a_request_streams_its_text_and_ends_with_usage_and_timings() -> None:
    async def work() -> None:
        generator, engine = generator_of(says("Hello the 🦙"))
        deltas = await read(generator, request_of())
        num_tokens = sum(len(delta.token_ids) for delta in deltas)
        assert joined(deltas) == "Hello the 🦙"
        assert len(deltas) == num_tokens == len(TOKENIZER.encode_text("Hello the 🦙")) + 1
        end = deltas[-1]
        assert end.finish_reason is FinishReason.STOP
        assert end.usage == Usage(1, num_tokens, 3)
        assert end.timings == TIMINGS
        assert engine.cancelled == []
        assert engine.submitted[0].request_id == "r"
        assert engine.submitted[0].leader_id is None

    run(work)


def test_streamed_text_equals_unary_text() -> None:
    """BL-21: one path serves both."""

    async def work() -> None:
        generator, _ = generator_of(says("Count: 4, 5, 6, 7, 8"))
        request = request_of(SamplingParams(stop=("6, 7",)))
        deltas = await read(generator, request)
        (answer,) = await generator.complete(request)
        assert joined(deltas) == answer.text == "Count: 4, 5, "
        assert answer.finish_reason is FinishReason.STOP
        assert answer.token_ids == tuple(i for delta in deltas for i in delta.token_ids)

    run(work)


def test_a_stop_string_ends_the_request_in_the_engine() -> None:
    """BL-21: the engine, which knows no text, is told once."""

    async def work() -> None:
        generator, engine = generator_of(talks_on)
        deltas = await read(generator, request_of(SamplingParams(stop=("45",))))
        assert joined(deltas) == "0123"
        assert deltas[-1].finish_reason is FinishReason.STOP
        assert deltas[-1].matched_stop == "45"
        assert deltas[-1].timings == TIMINGS
        assert engine.cancelled == ["r"]
        assert engine.live == set()

    run(work)


def test_several_answers_are_merged_each_with_one_end() -> None:
    async def work() -> None:
        generator, engine = generator_of(says_its_id)
        deltas = await read(generator, request_of(SamplingParams(n=3, seed=7, temperature=1.0)))
        for index in range(3):
            assert joined(deltas, index) == f"I am r#{index}."
        ends = [delta.index for delta in deltas if delta.finish_reason is not None]
        assert sorted(ends) == [0, 1, 2]
        assert [r.request_id for r in engine.submitted] == ["r#0", "r#1", "r#2"]
        assert [r.leader_id for r in engine.submitted] == [None, "r#0", "r#0"]
        assert {r.params.n for r in engine.submitted} == {1}
        first_end = next(i for i, d in enumerate(deltas) if d.finish_reason is not None)
        assert {delta.index for delta in deltas[:first_end]} == {0, 1, 2}

    run(work)


def test_seeded_answers_get_distinct_repeatable_seeds_the_first_the_given_one() -> None:
    """BL-28: n=2 gives two different but repeatable choices; 0 is a seed."""

    async def work() -> None:
        seeds = []
        for n in (1, 4, 4):
            generator, engine = generator_of(says("a"))
            await read(generator, request_of(SamplingParams(seed=0, n=n)))
            seeds.append([request.params.seed for request in engine.submitted])
        assert seeds[0] == [0]
        assert seeds[1] == seeds[2]
        assert seeds[1][0] == 0
        assert len(set(seeds[1])) == 4

    run(work)


def test_unseeded_requests_get_seeds_of_their_own_and_resolved_params() -> None:
    async def work() -> None:
        generator, engine = generator_of(says("a"))
        for _ in range(2):
            await read(generator, request_of(SamplingParams(top_k=3)))
        first, second = (request.params for request in engine.submitted)
        assert first.seed is not None
        assert first.seed != second.seed
        assert (first.temperature, first.top_k) == (0.0, 3)

    run(work)


def test_a_wrong_request_is_refused_before_the_engine_hears_of_it() -> None:
    """BL-25, BL-30: and its id is free again."""

    async def work() -> None:
        generator, engine = generator_of(says("a"))
        with pytest.raises(PromptTooLongError):
            await read(generator, request_of(SamplingParams(max_new_tokens=64)))
        with pytest.raises(RequestError, match="logit_bias"):
            await read(generator, request_of(SamplingParams(logit_bias={9999: 1.0})))
        assert engine.submitted == []
        assert joined(await read(generator, request_of())) == "a"

    run(work)


def test_an_overload_in_the_middle_of_n_leaves_nothing_behind() -> None:
    async def work() -> None:
        generator, engine = generator_of(talks_on)
        engine.refusal = (2, OverloadedError("the queue is full"))
        with pytest.raises(OverloadedError):
            await read(generator, request_of(SamplingParams(n=4)))
        assert engine.cancelled == ["r#0", "r#1"]
        assert not generator.abort("r")

    run(work)


@pytest.mark.parametrize("n", [1, 3])
def test_closing_the_stream_early_ends_all_answers(n: int) -> None:
    async def work() -> None:
        generator, engine = generator_of(talks_on)
        async with aclosing(generator.stream(request_of(SamplingParams(n=n)))) as deltas:
            await anext(deltas)
            assert len(engine.live) == n
        assert engine.live == set()
        assert not generator.abort("r")

    run(work)


@pytest.mark.parametrize("n", [1, 3])
def test_cancelling_the_reader_ends_all_answers(n: int) -> None:
    async def work() -> None:
        generator, engine = generator_of(talks_on)
        reader = asyncio.create_task(read(generator, request_of(SamplingParams(n=n))))
        while len(engine.live) < n:
            await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert engine.live == set()

    run(work)


@pytest.mark.parametrize("n", [1, 3])
def test_an_abort_ends_every_answer_with_abort(n: int) -> None:
    async def work() -> None:
        generator, engine = generator_of(talks_on)
        reader = asyncio.create_task(read(generator, request_of(SamplingParams(n=n))))
        while len(engine.live) < n:
            await asyncio.sleep(0)
        assert generator.abort("r")
        ends = [d.finish_reason for d in await reader if d.finish_reason is not None]
        assert ends == [FinishReason.ABORT] * n
        assert not generator.abort("r")

    run(work)


@pytest.mark.parametrize(("tenant", "ended"), [("a", ["a"]), (None, ["a", "b"]), ("c", [])])
def test_an_id_is_aborted_for_one_owner_or_for_all(tenant: str | None, ended: list[str]) -> None:
    async def work() -> None:
        generator, engine = generator_of(talks_on)
        readers = {}
        for owner in ("a", "b"):
            request = request_of(SamplingParams())
            own = replace(request, owner=owner, scheduling=Scheduling(tenant=owner))
            readers[owner] = asyncio.create_task(read(generator, own))
        while len(engine.live) < 2:
            await asyncio.sleep(0)
        assert generator.abort("r", tenant) == len(ended)
        assert [owner for owner in readers if f"{owner}/r" in engine.cancelled] == ended
        generator.abort_all()
        await asyncio.gather(*readers.values())

    run(work)


def test_an_abort_while_the_request_is_submitted_is_not_lost() -> None:
    async def work() -> None:
        generator, engine = generator_of(talks_on)
        reader = asyncio.create_task(read(generator, request_of(SamplingParams(n=3))))
        while len(engine.submitted) < 1:
            await asyncio.sleep(0)
        assert generator.abort("r")
        ends = [d.finish_reason for d in await reader if d.finish_reason is not None]
        assert ends == [FinishReason.ABORT] * 3

    run(work)


class StepBoundEngine(ScriptedEngine):
    """Accepts at the end of a step, like the real one: everything that was handed in by then."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.handed_in: list[str] = []
        self.step_ended = asyncio.Event()

    async def submit(self, request: Request) -> AsyncIterator[TokenDelta]:
        self.handed_in.append(request.request_id)
        await self.step_ended.wait()
        return await super().submit(request)


def test_all_answers_of_a_request_are_accepted_at_the_end_of_the_same_step() -> None:
    async def work() -> None:
        engine = StepBoundEngine(says("a"))
        generator = TextGenerator(engine, TOKENIZER, MODEL, max_model_len=64)
        reader = asyncio.create_task(read(generator, request_of(SamplingParams(n=3))))
        while len(engine.handed_in) < 3:
            await asyncio.sleep(0)
        assert engine.submitted == []
        engine.step_ended.set()
        assert {d.index for d in await reader} == {0, 1, 2}

    run(work)


def test_a_live_id_is_refused_and_free_again_after_the_end() -> None:
    """BL-39: the first request is not touched."""

    async def work() -> None:
        generator, engine = generator_of(says("the end"))
        async with aclosing(generator.stream(request_of())) as deltas:
            text = (await anext(deltas)).text
            with pytest.raises(DuplicateRequestError, match="'r'"):
                await read(generator, request_of())
            text += "".join([delta.text async for delta in deltas])
        assert text == "the end"
        assert len(engine.submitted) == 1
        assert joined(await read(generator, request_of())) == "the end"

    run(work)


@pytest.mark.parametrize("request_id", ["", "x" * 257, "a\nb", "a\x00b", "a\x7f", "a\u2028b"])
def test_odd_ids_are_refused(request_id: str) -> None:
    """BL-39: empty, 10 kB long, with line breaks."""

    async def work() -> None:
        generator, _ = generator_of(says("a"))
        with pytest.raises(RequestError, match="request_id") as caught:
            await read(generator, request_of(request_id=request_id))
        assert len(str(caught.value)) < 500
        assert "\n" not in str(caught.value)

    run(work)


def test_unusual_but_printable_ids_are_served() -> None:
    async def work() -> None:
        generator, _ = generator_of(says("a"))
        for request_id in ("a b", "träge-Ø", "x" * 256, "r#0"):
            assert joined(await read(generator, request_of(request_id=request_id))) == "a"

    run(work)


def test_messages_reach_the_engine_through_the_template() -> None:
    async def work() -> None:
        generator, engine = generator_of(says("a"))
        messages = (ChatMessage("user", "the"),)
        rendered = await generator.render_chat(messages)
        await read(generator, TextRequest("r", SamplingParams(), messages=messages))
        assert engine.submitted[0].prompt_token_ids == TOKENIZER.encode_text(rendered)

    run(work)


def test_the_cache_salt_reaches_the_engine() -> None:
    async def work() -> None:
        generator, engine = generator_of(says("a"))
        request = TextRequest("r", SamplingParams(), text="the", cache_salt="tenant")
        await read(generator, request)
        assert engine.submitted[0].cache_salt == "tenant"

    run(work)


def test_tokenize_and_detokenize() -> None:
    async def work() -> None:
        generator, _ = generator_of(says("a"))
        ids = await generator.tokenize("the 🦙<|im_end|>", add_special_tokens=True)
        assert ids == TOKENIZER.encode_text("the 🦙<|im_end|>")
        assert await generator.detokenize(ids, skip_special_tokens=True) == "the 🦙"
        assert await generator.detokenize(ids, False) == "the 🦙<|im_end|>"
        assert await generator.detokenize(ids * 2000, True) == "the 🦙" * 2000
        assert await generator.detokenize([], True) == ""
        with pytest.raises(RequestError, match="token id 9999"):
            await generator.detokenize([9999], True)

    run(work)
