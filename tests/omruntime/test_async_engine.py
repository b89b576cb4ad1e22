"""The engine thread: acceptance, streams, cancellation and the end, over the toy model."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from omruntime.async_engine import AsyncEngine
from omruntime.errors import (
    BundleError,
    ConfigError,
    DuplicateRequestError,
    OverloadedError,
    PromptTooLongError,
    ShuttingDownError,
)
from omruntime.outputs import TokenDelta
from omruntime.scheduling.turn import Scheduling
from omruntime.sequence import FinishReason, Request
from omruntime.settings import EngineSettings
from omruntime.token_stream import TokenStream, merge
from tests.omruntime.test_engine import GREEDY
from tests.omruntime.toy_model import toy_answer, write_toy_bundle


@asynccontextmanager
async def running(bundle: Path, **settings: int) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine.open(bundle, EngineSettings(num_threads=1, **settings))  # type: ignore[arg-type]
    await asyncio.to_thread(engine.start, lambda _line: None)
    try:
        yield engine
    finally:
        await asyncio.to_thread(engine.stop)
    assert engine.load().num_referenced_blocks == 0


async def read_all(stream: TokenStream) -> TokenDelta:
    deltas = [delta async for delta in stream]
    assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
    answer = deltas[0]
    for delta in deltas[1:]:
        answer = merge(answer, delta)
    return answer


def test_concurrent_streams_get_their_own_answers(toy_bundle: Path) -> None:
    prompts = [(i + 1, 2, 3) for i in range(40)]

    async def ask(engine: AsyncEngine, i: int) -> TokenDelta:
        return await read_all(await engine.submit(Request(f"r{i}", prompts[i], GREEDY)))

    async def main() -> list[TokenDelta]:
        async with running(toy_bundle) as engine:
            return await asyncio.gather(*(ask(engine, i) for i in range(40)))

    for prompt, answer in zip(prompts, asyncio.run(main()), strict=True):
        assert answer.token_ids == toy_answer(prompt, 20)
        assert answer.timings is not None
        assert min(answer.timings.queue_s, answer.timings.prefill_s, answer.timings.decode_s) >= 0


def test_refusals_come_before_acceptance_and_touch_nobody(toy_bundle: Path) -> None:
    async def main() -> TokenDelta:
        async with running(toy_bundle) as engine:
            long = replace(GREEDY, max_new_tokens=50)
            first = await engine.submit(Request("id", (1, 2), long))
            with pytest.raises(DuplicateRequestError, match="'id'"):
                await engine.submit(Request("id", (3,), GREEDY))
            with pytest.raises(PromptTooLongError):
                await engine.submit(Request("long", (1,) * 64, GREEDY))
            return await read_all(first)

    assert asyncio.run(main()).token_ids == toy_answer((1, 2), 50)


def test_an_id_is_free_again_after_the_last_delta(toy_bundle: Path) -> None:
    async def main() -> None:
        async with running(toy_bundle) as engine:
            for _ in range(3):
                await read_all(await engine.submit(Request("id", (1,), GREEDY)))

    asyncio.run(main())


def test_a_full_queue_is_refused_with_the_limit(toy_bundle: Path) -> None:
    """One row runs, one request may wait: of many at once, some must be refused."""

    refusals: list[str] = []

    async def ask(engine: AsyncEngine, i: int) -> bool:
        try:
            answer = await read_all(await engine.submit(Request(f"r{i}", (1,), GREEDY)))
        except OverloadedError as error:
            refusals.append(str(error))
            return False
        assert answer.token_ids == toy_answer((1,), 20)
        return True

    async def main() -> list[bool]:
        async with running(toy_bundle, max_num_seqs=1, max_queued_requests=1) as engine:
            return await asyncio.gather(*(ask(engine, i) for i in range(30)))

    accepted = asyncio.run(main())
    assert any(accepted)
    assert not all(accepted)
    assert all("max_queued_requests is 1;" in text for text in refusals)


def test_abort_ends_the_stream_with_one_last_delta(toy_bundle: Path) -> None:
    async def main() -> None:
        async with running(toy_bundle) as engine:
            stream = await engine.submit(Request("r", (1,), replace(GREEDY, max_new_tokens=60)))
            await anext(stream)
            found = await engine.abort("r")
            rest = [delta async for delta in stream]
            assert rest[-1].finish_reason in (FinishReason.ABORT, FinishReason.LENGTH)
            assert found == (rest[-1].finish_reason is FinishReason.ABORT)
            assert not await engine.abort("r")
            assert not await engine.abort("unknown")

    asyncio.run(main())


def test_cancelling_at_random_times_leaves_nothing_behind(toy_bundle: Path) -> None:
    """BL-43: before acceptance, in the queue, in prefill and while decoding."""
    draw = random.Random(11)

    async def ask(engine: AsyncEngine, i: int) -> None:
        request = Request(f"r{i}", (1,) * draw.randrange(1, 40), GREEDY)
        async for _ in await engine.submit(request):
            pass

    async def ask_and_leave(engine: AsyncEngine, i: int) -> None:
        task = asyncio.ensure_future(ask(engine, i))
        for _ in range(draw.randrange(30)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        engine.cancel(f"r{i}")

    async def main() -> None:
        async with running(toy_bundle) as engine:
            for start in range(0, 500, 50):
                await asyncio.gather(*(ask_and_leave(engine, start + i) for i in range(50)))
            # Its acceptance comes after every cancellation before it.
            await read_all(await engine.submit(Request("last", (1,), GREEDY)))
            load = engine.load()
            assert (load.num_running, load.num_waiting, load.num_referenced_blocks) == (0, 0, 0)
            assert not engine._streams

    asyncio.run(main())


def test_stop_ends_live_streams_and_refuses_new_ones(toy_bundle: Path) -> None:
    async def main() -> None:
        async with running(toy_bundle, max_num_seqs=1) as engine:
            streams = [
                await engine.submit(Request(f"r{i}", (1,), replace(GREEDY, max_new_tokens=60)))
                for i in range(20)
            ]
            await asyncio.to_thread(engine.stop)
            answers = [await read_all(stream) for stream in streams]
            assert answers[-1].finish_reason is FinishReason.ABORT
            with pytest.raises(ShuttingDownError):
                await engine.submit(Request("late", (1,), GREEDY))

    asyncio.run(main())


def test_draining_refuses_new_requests_and_finishes_live_ones(toy_bundle: Path) -> None:
    async def main() -> None:
        async with running(toy_bundle) as engine:
            stream = await engine.submit(Request("r", (1,), GREEDY))
            engine.drain()
            with pytest.raises(ShuttingDownError):
                await engine.submit(Request("late", (1,), GREEDY))
            assert (await read_all(stream)).token_ids == toy_answer((1,), 20)

    asyncio.run(main())


def test_a_slow_reader_gets_merged_deltas(toy_bundle: Path) -> None:
    async def main() -> None:
        async with running(toy_bundle) as engine:
            slow = await engine.submit(Request("slow", (1,), GREEDY))
            await read_all(
                await engine.submit(Request("fast", (1,), replace(GREEDY, max_new_tokens=40)))
            )
            deltas = [delta async for delta in slow]
            assert len(deltas) == 1
            assert deltas[0].token_ids == toy_answer((1,), 20)

    asyncio.run(main())


def test_a_damaged_bundle_fails_the_start(toy_bundle: Path, tmp_path: Path) -> None:
    text = (toy_bundle / "bundle.json").read_text(encoding="utf-8")
    (tmp_path / "bundle.json").write_text(text, encoding="utf-8")
    engine = AsyncEngine.open(tmp_path, EngineSettings())
    with pytest.raises(BundleError, match=r"step\.onnx: missing"):
        engine.start(lambda _line: None)


def test_a_request_made_before_a_start_that_fails_is_refused(tmp_path: Path) -> None:
    bundle = write_toy_bundle(tmp_path / "bundle")
    engine = AsyncEngine.open(bundle, EngineSettings(num_threads=1))
    (bundle / "programs" / "step.onnx").unlink()

    async def main() -> None:
        early = asyncio.ensure_future(engine.submit(Request("r", (1,), GREEDY)))
        await asyncio.sleep(0)
        with pytest.raises(BundleError):
            await asyncio.to_thread(engine.start, lambda _line: None)
        with pytest.raises(ShuttingDownError):
            await early
        with pytest.raises(ShuttingDownError):
            await engine.submit(Request("late", (1,), GREEDY))

    asyncio.run(main())


def test_start_reports_every_bucket(toy_bundle: Path) -> None:
    lines: list[str] = []
    engine = AsyncEngine.open(toy_bundle, EngineSettings(num_threads=1))
    engine.start(lines.append)
    engine.stop()
    assert sum("warming up" in line for line in lines) == len(engine.manifest.bucket_table())


def test_stop_during_warm_up_ends_the_start(toy_bundle: Path) -> None:
    """BL-45: a signal before the model is up."""
    engine = AsyncEngine.open(toy_bundle, EngineSettings(num_threads=1))

    def stop_soon(line: str) -> None:
        if "warming up 2/" in line:
            engine._stopping.set()

    with pytest.raises(ShuttingDownError, match="warming up"):
        engine.start(stop_soon)


def test_limits_beyond_the_bundle_are_refused(toy_bundle: Path) -> None:
    for name, most in (("max_num_seqs", 16), ("max_model_len", 64), ("max_chunk_tokens", 16)):
        with pytest.raises(ConfigError, match=rf"{name} is {most + 1}.*at most {most}"):
            AsyncEngine.open(toy_bundle, EngineSettings(**{name: most + 1}))  # type: ignore[arg-type]


def test_an_end_by_stop_string_counts_as_stop(toy_bundle: Path) -> None:
    async def main() -> None:
        async with running(toy_bundle) as engine:
            stream = await engine.submit(Request("r", (1,), replace(GREEDY, max_new_tokens=60)))
            engine.cancel("r", FinishReason.STOP)
            assert (await read_all(stream)).finish_reason is FinishReason.STOP
            assert engine.load().num_finished["stop"] == 1

    asyncio.run(main())


def test_an_id_is_free_within_the_step_that_its_request_was_cancelled_in(toy_bundle: Path) -> None:
    """The old request's last delta is its own, whatever comes after it under the same id."""

    async def main() -> None:
        async with running(toy_bundle) as engine:
            params = replace(GREEDY, max_new_tokens=60)
            for token in range(1, 40):
                old = await engine.submit(Request("id", (token,), params))
                # No turn of the event loop in between: both commands are taken together.
                engine.cancel("id")
                new = await engine.submit(Request("id", (token, 2), GREEDY))
                assert (await read_all(old)).finish_reason is FinishReason.ABORT
                assert (await read_all(new)).token_ids == toy_answer((token, 2), 20)

    asyncio.run(main())


def test_flush_and_counters_reach_the_engine(toy_bundle: Path) -> None:
    prompt = tuple(range(1, 30))

    async def main() -> None:
        async with running(toy_bundle) as engine:
            for name in ("cold", "warm"):
                await read_all(await engine.submit(Request(name, prompt, GREEDY)))
            assert await engine.flush_prefix_cache() > 0
            assert await engine.flush_prefix_cache() == 0
            await read_all(await engine.submit(Request("flushed", prompt, GREEDY)))
            counters = engine.counters()
            held = await engine.submit(Request("held", prompt, replace(GREEDY, max_new_tokens=60)))
            assert [s.request_id for s in (await engine.inspect()).sequences] == ["held"]
            engine.cancel("held")
            await read_all(held)
        assert counters.num_steps > 0
        assert (counters.prefix_cache.num_hits, counters.prefix_cache.num_misses) == (1, 2)
        for ask in (engine.flush_prefix_cache, engine.inspect):
            with pytest.raises(ShuttingDownError):
                await ask()

    asyncio.run(main())


def test_a_deadline_ends_a_stream_with_abort_and_a_word(toy_bundle: Path) -> None:
    """BL-43: also while it waits for a place."""

    async def main() -> list[TokenDelta]:
        async with running(toy_bundle, max_num_seqs=1) as engine:
            past = Scheduling(deadline=time.monotonic())
            requests = [Request("first", (1, 2), GREEDY)]
            requests += [Request("late", (1, 2), GREEDY, scheduling=past)]
            streams = [await engine.submit(request) for request in requests]
            answers = [await read_all(stream) for stream in streams]
            assert engine.load().num_referenced_blocks == 0
            return answers

    first, late = asyncio.run(main())
    assert first.finish_reason is FinishReason.LENGTH
    assert late.finish_reason is FinishReason.ABORT
    assert "deadline" in late.error


def test_cancelling_twice_or_after_the_end_is_harmless(toy_bundle: Path) -> None:
    """Also when the id lives again by then: a cancellation ends only what was there before."""

    async def main() -> None:
        async with running(toy_bundle) as engine:
            long = replace(GREEDY, max_new_tokens=50)
            stream = await engine.submit(Request("id", (1, 2), long))
            engine.cancel("id")
            engine.cancel("id")
            assert await engine.abort("id") is False
            assert (await read_all(stream)).finish_reason is FinishReason.ABORT
            engine.cancel("id")
            again = await engine.submit(Request("id", (1, 2), long))
            assert (await read_all(again)).token_ids == toy_answer((1, 2), 50)
            engine.cancel("id")
            engine.cancel("never there")
            assert engine.load().num_finished["abort"] == 1

    asyncio.run(main())


def test_cancelling_in_the_step_of_the_end_ends_once(toy_bundle: Path) -> None:
    """The cancellation is on its way while the last token is made; one last delta either way."""

    async def main() -> None:
        async with running(toy_bundle) as engine:
            reasons = []
            for i in range(60):
                stream = await engine.submit(Request(f"r{i}", (1,), GREEDY))
                received: tuple[int, ...] = ()
                async for delta in stream:
                    assert not reasons[i:], "a delta after the last"
                    received += delta.token_ids
                    if len(received) >= 17 + i % 4:
                        engine.cancel(f"r{i}")
                    if delta.finish_reason is not None:
                        reasons.append(delta.finish_reason)
                assert received == toy_answer((1,), 20)[: len(received)]
            ends = engine.load().num_finished
            assert ends["length"] + ends["abort"] == 60
            assert ends["abort"] == reasons.count(FinishReason.ABORT)
            assert len(reasons) == 60

    asyncio.run(main())
