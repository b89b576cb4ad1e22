"""The engine in a process of its own does what the engine in a thread does."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace
from pathlib import Path

import pytest

from omruntime.errors import (
    BundleError,
    ConfigError,
    DuplicateRequestError,
    OverloadedError,
    PromptTooLongError,
    ShuttingDownError,
)
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import Request
from omruntime.worker.worker_engine import WorkerEngine
from tests.omruntime.test_engine import GREEDY
from tests.omruntime.toy_model import toy_answer
from tests.omruntime.worker.serving import (
    ABORT,
    LONG,
    STOP,
    ask,
    read_all,
    serving,
    settings_of,
)


def test_streams_refusals_and_cancellations(toy_bundle: Path) -> None:
    """Over one process, whose start costs more than everything here."""

    async def main() -> None:
        async with serving(toy_bundle) as (engine, events):
            await concurrent_streams(engine)
            await refusals(engine)
            await ids(engine)
            await merged(engine)
            await logprobs(engine)
            await prompt_logprobs(engine)
            await cancelled_at_random_times(engine)
            assert await engine.flush_prefix_cache() > 0
            assert engine.counters().prefix_cache.num_flushed > 0
            await looks(engine)
            assert not events.errors

    asyncio.run(main())


async def concurrent_streams(engine: WorkerEngine) -> None:
    prompts = [(i + 1, 2, 3) for i in range(40)]
    answers = await asyncio.gather(*(ask(engine, f"r{i}", *p) for i, p in enumerate(prompts)))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.token_ids == toy_answer(prompt, 20)
        assert answer.timings is not None
        assert min(answer.timings.queue_s, answer.timings.prefill_s, answer.timings.decode_s) >= 0


async def refusals(engine: WorkerEngine) -> None:
    first = await engine.submit(Request("id", (1, 2), LONG))
    with pytest.raises(DuplicateRequestError, match="'id'"):
        await engine.submit(Request("id", (3,), GREEDY))
    with pytest.raises(PromptTooLongError):
        await engine.submit(Request("long", (1,) * 64, GREEDY))
    assert (await read_all(first)).token_ids == toy_answer((1, 2), 60)


async def ids(engine: WorkerEngine) -> None:
    """An id is free within the step that its request was cancelled in."""
    for token in range(1, 20):
        old = await engine.submit(Request("id", (token,), LONG))
        engine.cancel("id")
        new = await engine.submit(Request("id", (token, 2), GREEDY))
        ended = await read_all(old)
        # On a busy machine it may have ended before the cancellation came.
        assert ended.finish_reason is ABORT or ended.token_ids == toy_answer((token,), 60)
        assert (await read_all(new)).token_ids == toy_answer((token, 2), 20)
    stopped = await engine.submit(Request("stopped", (1,), LONG))
    engine.cancel("stopped", STOP)
    assert (await read_all(stopped)).finish_reason is STOP
    engine.cancel("unknown")


async def merged(engine: WorkerEngine) -> None:
    slow = await engine.submit(Request("slow", (1,), GREEDY))
    await ask(engine, "fast", 1, tokens=40)
    deltas = [delta async for delta in slow]
    assert len(deltas) == 1
    assert deltas[0].token_ids == toy_answer((1,), 20)


async def logprobs(engine: WorkerEngine) -> None:
    params: SamplingParams = replace(GREEDY, logprobs=3)
    answer = await read_all(await engine.submit(Request("logprobs", (1,), params)))
    assert [len(entry.top) for entry in answer.logprobs] == [3] * 20


async def prompt_logprobs(engine: WorkerEngine) -> None:
    prompt = (1, 2, 3) * 13
    params = replace(GREEDY, prompt_logprobs=2)
    answer = await read_all(await engine.submit(Request("scored", prompt, params)))
    assert answer.token_ids == toy_answer(prompt, 20)
    assert len(answer.prompt_logprobs) == 38
    for end, score in enumerate(answer.prompt_logprobs, start=1):
        assert (score.rank == 1) == (toy_answer(prompt[:end], 1) == prompt[end : end + 1])
    only = replace(params, max_new_tokens=0)
    alone = await read_all(await engine.submit(Request("only", prompt, only)))
    assert (alone.prompt_logprobs, alone.token_ids) == (answer.prompt_logprobs, ())


async def cancelled_at_random_times(engine: WorkerEngine) -> None:
    """BL-43: before acceptance, in the queue, in prefill and while decoding."""
    draw = random.Random(11)

    async def ask_and_leave(i: int) -> None:
        prompt = (1,) * draw.randrange(1, 40)
        task = asyncio.ensure_future(ask(engine, f"r{i}", *prompt))
        for _ in range(draw.randrange(30)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        engine.cancel(f"r{i}")

    for start in range(0, 200, 50):
        await asyncio.gather(*(ask_and_leave(start + i) for i in range(50)))
    await ask(engine, "last", 1)
    load = engine.load()
    assert (load.num_running, load.num_waiting, load.num_referenced_blocks) == (0, 0, 0)


async def looks(engine: WorkerEngine) -> None:
    held = await engine.submit(Request("held", (1, 2), LONG))
    state = await engine.inspect()
    assert [s.request_id for s in state.sequences] in (["held"], [])  # it may have ended
    assert sum(report.num_steps for report in state.buckets) > 0
    assert any(report.warm_up_s > 0 for report in state.buckets)
    await read_all(held)


def test_the_log_level_reaches_the_device_process(
    toy_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With faults, of which each logs a line."""

    async def main() -> None:
        async with serving(toy_bundle, inject_fault="slow=1@2,slow=1@30") as (engine, _):
            engine.log_from(logging.CRITICAL)
            await ask(engine, "quiet", 1, tokens=20)
            quiet = caplog.text.count("injecting")
            engine.log_from(logging.INFO)
            await ask(engine, "loud", 1, tokens=40)
            assert (quiet, caplog.text.count("injecting")) == (0, 1)

    with caplog.at_level(logging.INFO):
        asyncio.run(main())


def test_a_full_queue_is_refused_with_the_limit(toy_bundle: Path) -> None:
    async def try_to_ask(engine: WorkerEngine, i: int) -> str:
        try:
            answer = await ask(engine, f"r{i}", 1)
        except OverloadedError as error:
            return str(error)
        assert answer.token_ids == toy_answer((1,), 20)
        return ""

    async def main() -> list[str]:
        async with serving(toy_bundle, max_num_seqs=1, max_queued_requests=1) as (engine, _):
            return await asyncio.gather(*(try_to_ask(engine, i) for i in range(30)))

    texts = asyncio.run(main())
    assert "" in texts
    refusals = [text for text in texts if text]
    assert refusals
    assert all("max_queued_requests is 1" in text for text in refusals)


def test_draining_finishes_what_is_live_and_stopping_ends_it(toy_bundle: Path) -> None:
    async def main() -> None:
        async with serving(toy_bundle, max_num_seqs=1) as (engine, events):
            streams = [await engine.submit(Request(f"r{i}", (1,), LONG)) for i in range(20)]
            engine.drain()
            with pytest.raises(ShuttingDownError):
                await engine.submit(Request("late", (1,), GREEDY))
            assert (await read_all(streams[0])).token_ids == toy_answer((1,), 60)
            await asyncio.to_thread(engine.stop)
            answers = [await read_all(stream) for stream in streams[1:]]
            assert answers[-1].finish_reason is ABORT
            assert sum(engine.load().num_finished.values()) == 20
            with pytest.raises(ShuttingDownError):
                await engine.submit(Request("late", (1,), GREEDY))
            with pytest.raises(ShuttingDownError):
                await engine.flush_prefix_cache()
            assert not events.errors

    asyncio.run(main())


def test_a_damaged_bundle_fails_the_start_by_its_class(toy_bundle: Path, tmp_path: Path) -> None:
    text = (toy_bundle / "bundle.json").read_text(encoding="utf-8")
    (tmp_path / "bundle.json").write_text(text, encoding="utf-8")
    engine = WorkerEngine.open(tmp_path, settings_of())
    with pytest.raises(BundleError, match=r"step\.onnx: missing"):
        engine.start(lambda _line: None)
    engine.stop()


def test_limits_beyond_the_bundle_are_refused_before_a_process_is_started(
    toy_bundle: Path,
) -> None:
    with pytest.raises(ConfigError, match="max_num_seqs is 17"):
        WorkerEngine.open(toy_bundle, settings_of(max_num_seqs=17))


def test_start_reports_every_bucket_and_can_be_stopped(toy_bundle: Path) -> None:
    """BL-45: a signal before the model is up."""
    engine = WorkerEngine.open(toy_bundle, settings_of())
    lines: list[str] = []
    engine.start(lines.append)
    engine.stop()
    assert sum("warming up" in line for line in lines) == len(engine.manifest.bucket_table())

    async def main() -> None:
        engine = WorkerEngine.open(toy_bundle, settings_of())
        loading = asyncio.Event()
        loop = asyncio.get_running_loop()
        start = asyncio.ensure_future(
            asyncio.to_thread(engine.start, lambda _line: loop.call_soon_threadsafe(loading.set))
        )
        await loading.wait()
        await asyncio.to_thread(engine.stop)
        with pytest.raises(ShuttingDownError, match="while loading"):
            await start

    asyncio.run(main())
