"""AsyncEngine: the engine thread, and one asyncio stream for each request.

The one thread hop of a request. Event loops put commands into a queue; the engine thread takes
them between two steps and owns all else: device, sequences and the map of streams.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omruntime.buckets import Bucket
from omruntime.costs.warm_up import describe_run
from omruntime.engine import Engine
from omruntime.engine_state import EngineState
from omruntime.errors import OmError, ShuttingDownError
from omruntime.limits import EngineLimits, resolve_limits
from omruntime.manifest import Manifest
from omruntime.outputs import EngineCounters, EngineLoad
from omruntime.sampling.token_matcher import Grammar
from omruntime.sequence import FinishReason, Request
from omruntime.settings import EngineSettings
from omruntime.step_deltas import EngineOutput
from omruntime.token_stream import TokenStream, call_soon, deliver, resolve

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Add:
    request: Request
    stream: TokenStream
    accepted: asyncio.Future[None]
    submitted_at: float
    grammar: Future[Grammar] | None = None


@dataclass(frozen=True, slots=True)
class _Abort:
    """`found` is told whether the request was live; None when nobody waits."""

    request_id: str
    reason: FinishReason
    found: asyncio.Future[bool] | None


@dataclass(frozen=True, slots=True)
class _Ask:
    """`answer` is told what `question` gives, between two steps."""

    question: Callable[[Engine], object]
    answer: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Wake:
    """Does nothing but end the wait for a command."""


_Command = _Add | _Abort | _Ask | _Wake


class AsyncEngine:
    """Runs one engine in a thread of its own.

    Attributes:
        manifest: Of the bundle.
        limits: In force.
        on_device_error: Called in the engine thread with the text of every failed step.
        on_recovered: Never called: a device in the serving process cannot be started anew.
    """

    def __init__(
        self,
        open_engine: Callable[[Callable[[str], None]], Engine],
        manifest: Manifest,
        limits: EngineLimits,
    ) -> None:
        """Prepare; nothing runs before `start`.

        Args:
            open_engine: Opens device and engine; called in the engine thread, with whom to tell
                each stage.
        """
        self.manifest = manifest
        self.limits = limits
        self.on_device_error: Callable[[str], None] = lambda _text: None
        self.on_recovered: Callable[[], None] = lambda: None
        self._open_engine = open_engine
        self._progress: Callable[[str], None] = lambda _line: None
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._closing = threading.Lock()  # held to put a command, and to close the queue
        self._closed = False
        self._draining = False
        self._stopping = threading.Event()
        self._started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._streams: dict[str, TokenStream] = {}
        self._load = EngineLoad.idle(limits.num_blocks - 1)
        self._counters = EngineCounters.none()
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    @staticmethod
    def open(bundle: Path, settings: EngineSettings) -> AsyncEngine:
        """Read the manifest and settle the limits; the device is opened by `start`.

        Raises:
            BundleError: The manifest is damaged or its buckets do not cover every step.
            ConfigError: A setting passes what the bundle was built for.
        """
        manifest = Manifest.read(bundle)
        limits = resolve_limits(settings, manifest)

        def open_engine(on_stage: Callable[[str], None]) -> Engine:
            return Engine.open(bundle, settings, on_stage)

        return AsyncEngine(open_engine, manifest, limits)

    def start(self, progress: Callable[[str], None]) -> None:
        """Load the bundle and run every bucket once; returns when the engine takes requests.

        Args:
            progress: Called in the engine thread with one line for each stage.

        Raises:
            OmError: Loading or warming up failed; the thread has ended.
            ShuttingDownError: `stop` was called meanwhile.
        """
        self._progress = progress
        self._thread.start()
        error = self._started.get()
        if error is not None:
            raise error

    async def submit(self, request: Request) -> TokenStream:
        """Queue a request; returns its stream once the engine has accepted it.

        Acceptance takes until the end of the step in flight, before which the request could
        not have been scheduled anyway. A cancelled call leaves no request behind.

        Raises:
            RequestError: It can never run, or its id is that of a live request.
            OverloadedError: A queue limit is reached.
            ShuttingDownError: Draining or stopped.
        """
        loop = asyncio.get_running_loop()
        stream = TokenStream(request.request_id, loop)
        accepted: asyncio.Future[None] = loop.create_future()
        if self._draining:
            raise _shutting_down()
        self._put(_Add(request, stream, accepted, time.monotonic()))
        try:
            await accepted
        except asyncio.CancelledError:
            # A pending future is cancelled with its task and `_accept` sees it; here the
            # answer was in before the cancellation.
            if not accepted.cancelled() and accepted.exception() is None:
                self.cancel(request.request_id)
            raise
        return stream

    async def abort(self, request_id: str) -> bool:
        """End a request; its stream gets a last delta with ABORT.

        Returns:
            Whether such a request was live.
        """
        found: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._put(_Abort(request_id, FinishReason.ABORT, found))
        return await found

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a request that nobody needs to go on; does not wait, and never fails.

        Args:
            reason: STOP when the text layer found a stop string.
        """
        try:
            self._put(_Abort(request_id, reason, None))
        except ShuttingDownError:
            return  # everything was aborted already

    def load(self) -> EngineLoad:
        """What the engine held after its last step; from any thread."""
        return self._load

    def counters(self) -> EngineCounters:
        """What had happened until the last step; from any thread."""
        return self._counters

    async def flush_prefix_cache(self) -> int:
        """Forget all cached beginnings and say how many blocks; running requests go on.

        Raises:
            ShuttingDownError: Stopped.
        """
        num_blocks: int = await self._ask(Engine.flush_prefix_cache)
        return num_blocks

    async def inspect(self) -> EngineState:
        """A look at the engine between two steps.

        Raises:
            ShuttingDownError: Stopped.
        """
        state: EngineState = await self._ask(Engine.inspect)
        return state

    def log_from(self, level: int) -> None:
        """Log from a level on: the thread is this process's, so nothing is left to do."""

    def drain(self) -> None:
        """Refuse new requests from now on; live ones go on."""
        self._draining = True

    def stop(self) -> None:
        """Abort all requests, end the thread and the device; waits for the step in flight."""
        self._draining = True
        self._stopping.set()
        self._commands.put(_Wake())
        if self._thread.is_alive():
            self._thread.join()

    async def _ask(self, question: Callable[[Engine], object]) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._put(_Ask(question, answer))
        return await answer

    def _accept(self, command: _Add) -> None:
        """Tell the caller of `submit`; in its event loop's thread."""
        if command.accepted.cancelled():
            self.cancel(command.request.request_id)
        else:
            command.accepted.set_result(None)

    def _put_again(self, command: _Add, grammar: Future[Grammar]) -> None:
        """Queue a request whose constraint is compiled or refused by now; from any thread."""
        try:
            self._put(replace(command, grammar=grammar))
        except ShuttingDownError as error:
            resolve(command.accepted, error)

    def _put(self, command: _Command) -> None:
        with self._closing:
            if self._closed:
                raise _shutting_down()
            self._commands.put(command)

    # From here on: the engine thread.

    def _main(self) -> None:
        try:
            engine = self._open_and_warm_up()
        except BaseException as error:  # raised again by the thread that waits in `start`
            self._close_queue()
            self._started.put(error)
            return
        self._started.put(None)
        try:
            while not self._stopping.is_set():
                self._advance(engine)
        except Exception as error:  # a bug; without its thread the engine serves nobody
            logger.exception("the engine thread ended")
            self.on_device_error(f"the engine thread ended: {error}")
        finally:
            self._close_queue()
            self._deliver(engine.abort_all())
            self._load = engine.load()
            engine.close()

    def _open_and_warm_up(self) -> Engine:
        engine = self._open_engine(self._progress)
        try:
            engine.warm_up(self._report_warm_up)
        except BaseException:
            engine.close()
            raise
        return engine

    def _report_warm_up(self, number: int, count: int, bucket: Bucket) -> None:
        if self._stopping.is_set():
            raise ShuttingDownError("stopped while warming up")
        self._progress(describe_run(number, count, bucket))

    def _advance(self, engine: Engine) -> None:
        """Take the waiting commands, run one step, hand out what is new."""
        self._take_commands(engine)
        outputs = engine.step()
        self._load, self._counters = engine.load(), engine.counters()
        self._deliver(outputs)
        error = engine.take_device_error()
        if error is not None:
            self.on_device_error(error)

    def _take_commands(self, engine: Engine) -> None:
        """Run all queued commands; waits for one while there is nothing else to do."""
        wait = not engine.has_work
        while True:
            try:
                command = self._commands.get(block=wait)
            except queue.Empty:
                return
            wait = False
            if isinstance(command, _Add):
                self._add(engine, command)
            elif isinstance(command, _Abort):
                self._abort(engine, command)
            elif isinstance(command, _Ask):
                resolve(command.answer, command.question(engine))

    def _add(self, engine: Engine, command: _Add) -> None:
        try:
            if command.grammar is None:
                grammar = engine.prepare(command.request)
                if grammar is not None:
                    grammar.add_done_callback(lambda done: self._put_again(command, done))
                    return
            engine.add(command.request, command.submitted_at, command.grammar)
        except OmError as error:
            resolve(command.accepted, error)
            return
        self._streams[command.request.request_id] = command.stream
        call_soon(command.stream.loop, self._accept, command)

    def _abort(self, engine: Engine, command: _Abort) -> None:
        aborted = engine.abort(command.request_id, command.reason)
        if command.found is not None:
            resolve(command.found, aborted is not None)
        if aborted is not None:
            # At once: the next command may add another request of the same id.
            self._load = engine.load()
            self._deliver([aborted])

    def _deliver(self, outputs: list[EngineOutput]) -> None:
        """Hand deltas to the streams, and forget those that have had their last."""
        pairs = [(self._streams[request_id], delta) for request_id, delta in outputs]
        # First, so that whoever has had the last delta finds nothing left of the request.
        for request_id, delta in outputs:
            if delta.finish_reason is not None:
                del self._streams[request_id]
        deliver(pairs)

    def _close_queue(self) -> None:
        """Refuse what is queued and all that comes later."""
        with self._closing:
            self._closed = True
        while not self._commands.empty():
            command = self._commands.get()
            if isinstance(command, _Add):
                resolve(command.accepted, _shutting_down())
            elif isinstance(command, _Abort) and command.found is not None:
                resolve(command.found, command.request_id in self._streams)
            elif isinstance(command, _Ask):
                resolve(command.answer, _shutting_down())


def _shutting_down() -> ShuttingDownError:
    return ShuttingDownError("the server is shutting down; send the request to another one")
