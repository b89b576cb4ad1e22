"""A WorkerEngine over the toy model with a real device process, and what tests ask of both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from omruntime.errors import NotReadyError
from omruntime.outputs import TokenDelta
from omruntime.sequence import FinishReason, Request
from omruntime.settings import EngineSettings
from omruntime.token_stream import TokenStream, merge
from omruntime.worker.worker_engine import WorkerEngine
from tests.omruntime.test_engine import GREEDY

# A bound against hanging, never a measurement.
LIMIT_S = 60.0
# Slow from the second step on, so that a stream is under way while a test acts.
HELD = "slow=1000@2"
LONG = replace(GREEDY, max_new_tokens=60)


@dataclass
class Events:
    """What the engine says of itself, in order, and a wait for it."""

    errors: list[str] = field(default_factory=list)
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    recovered: asyncio.Event = field(default_factory=asyncio.Event)
    injected: asyncio.Event = field(default_factory=asyncio.Event)


def settings_of(**values: Any) -> EngineSettings:
    values = {"num_threads": 1, "num_blocks": 100, **values}
    if "inject_fault" in values:
        values["allow_faults"] = True
    return EngineSettings(**values)


class _Injected(logging.Handler):
    """Tells when the device process logs that it injects a fault."""

    def __init__(self, events: Events) -> None:
        super().__init__()
        self._events, self._loop = events, asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        if "injecting" in record.getMessage():
            self._loop.call_soon_threadsafe(self._events.injected.set)


def watch(engine: WorkerEngine) -> Events:
    events, loop = Events(), asyncio.get_running_loop()

    def on_error(text: str) -> None:
        events.errors.append(text)
        loop.call_soon_threadsafe(events.failed.set)

    engine.on_device_error = on_error
    engine.on_recovered = lambda: loop.call_soon_threadsafe(events.recovered.set) and None
    return events


@asynccontextmanager
async def serving(bundle: Path, **settings: Any) -> AsyncIterator[tuple[WorkerEngine, Events]]:
    """A started engine; nothing of it may be left afterwards."""
    before, children = set(Path("/proc/self/fd").iterdir()), set(psutil.Process().children())
    engine = WorkerEngine.open(bundle, settings_of(**settings))
    events = watch(engine)
    faults, handler = logging.getLogger("omruntime.device.faults"), _Injected(events)
    faults.addHandler(handler)
    await asyncio.to_thread(engine.start, lambda _line: None)
    try:
        yield engine, events
    finally:
        await asyncio.to_thread(engine.stop)
        faults.removeHandler(handler)
    load = engine.load()
    assert (load.num_running, load.num_waiting, load.num_referenced_blocks) == (0, 0, 0)
    assert not len(engine._requests)
    assert set(Path("/proc/self/fd").iterdir()) <= before
    # Also none that ended and that nobody waited for.
    assert set(psutil.Process().children()) <= children


def device_pid() -> int:
    """Of the one device process of this process, which may have other children."""
    pid = try_device_pid()
    assert pid is not None
    return pid


def try_device_pid() -> int | None:
    """None while there is none, as between two of them."""
    pids = [
        child.pid
        for child in psutil.Process().children()
        if "omruntime.worker" in " ".join(child.cmdline())
    ]
    assert len(pids) < 2
    return pids[0] if pids else None


async def read_all(stream: TokenStream) -> TokenDelta:
    """Everything that a stream gives, as one delta; exactly one of them is the last."""
    async with asyncio.timeout(LIMIT_S):
        deltas = [delta async for delta in stream]
    assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
    answer = deltas[0]
    for delta in deltas[1:]:
        answer = merge(answer, delta)
    assert answer.finish_reason is not None
    return answer


async def ask(engine: WorkerEngine, request_id: str, *prompt: int, tokens: int = 20) -> TokenDelta:
    params = replace(GREEDY, max_new_tokens=tokens)
    return await read_all(await engine.submit(Request(request_id, prompt, params)))


async def wait_for(event: asyncio.Event) -> None:
    async with asyncio.timeout(LIMIT_S):
        await event.wait()


async def is_refused(engine: WorkerEngine) -> str:
    """The text that a new request is refused with."""
    try:
        await engine.submit(Request("refused", (1,), GREEDY))
    except NotReadyError as error:
        return str(error)
    raise AssertionError("the request was taken")


ABORT, ERROR = FinishReason.ABORT, FinishReason.ERROR
LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP
