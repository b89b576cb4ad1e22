"""WorkerEngine: the engine as the serving process sees it when the device has its own process.

Fits where `AsyncEngine` fits. Owns the life of device processes, one after the other: it starts
them, ends their requests when one dies, is stuck or has a failed device, and starts the next one.
It goes on for ever: health says that nothing is served meanwhile, and whether to give this
machine up is for whoever watches the health to decide.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omruntime.engine_state import EngineState
from omruntime.errors import DeviceError, NotReadyError, OmError, ShuttingDownError
from omruntime.limits import EngineLimits, resolve_limits
from omruntime.manifest import Manifest
from omruntime.outputs import EngineCounters, EngineLoad, TokenDelta
from omruntime.sequence import FinishReason, Request
from omruntime.settings import EngineSettings
from omruntime.token_stream import TokenStream, resolve
from omruntime.worker.back_off import BackOff
from omruntime.worker.carried_load import CarriedLoad
from omruntime.worker.launch import WorkerProcess
from omruntime.worker.live_requests import LiveRequests, error_delta
from omruntime.worker.log_lines import log_again
from omruntime.worker.messages import (
    Ask,
    Cancel,
    FromWorker,
    LoadFailed,
    LogFrom,
    LogLine,
    Progress,
    Question,
    Ready,
    Report,
    Start,
    Submit,
)
from omruntime.worker.watchdog import Due, Watchdog

logger = logging.getLogger(__name__)

# What a process gets for the step in flight and for releasing the device; while it loads there
# is nothing to lose.
STOP_S = 3.0
LOAD_STOP_S = 0.5
# The slowest storage that a bundle is served from, a network disk shared with others; compiling
# what was read goes faster.
LEAST_READ_BYTES_PER_S = 20 << 20
# What requests that a failed step did not touch get before the device is opened anew.
RECYCLE_S = 30.0


@dataclass(slots=True)
class _Life:
    """One device process from start to end.

    Attributes:
        serving_since: Seconds of `time.monotonic`; None while it loads.
        load_error: Why it never served, in its own words.
        verdict: Why the serving process ended it; empty when it did not.
        is_drained: Set when no request is left to it.
        is_recycling: Whether it takes no more requests after a failed step.
    """

    process: WorkerProcess
    is_drained: threading.Event
    serving_since: float | None = None
    load_error: OmError | None = None
    verdict: str = ""
    is_recycling: bool = False

    def served_s(self) -> float:
        """Seconds since it began to serve."""
        return 0.0 if self.serving_since is None else time.monotonic() - self.serving_since


class WorkerEngine:
    """Runs one engine in a process of its own.

    Attributes:
        manifest: Of the bundle.
        limits: In force.
        on_device_error: Called in a thread of this object when requests are no longer served.
        on_recovered: Called in a thread of this object when they are again.
        num_restarts: Device processes that were started in place of another.
    """

    def __init__(
        self, bundle: Path, settings: EngineSettings, manifest: Manifest, limits: EngineLimits
    ) -> None:
        """Prepare; nothing runs before `start`."""
        self.manifest = manifest
        self.limits = limits
        self.on_device_error: Callable[[str], None] = lambda _text: None
        self.on_recovered: Callable[[], None] = lambda: None
        self.num_restarts = 0
        self._bundle = bundle
        self._settings = settings
        self._progress: Callable[[str], None] = lambda _line: None
        self._requests = LiveRequests(limits, self.cancel)
        self._counts = CarriedLoad(limits.num_blocks - 1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._num_asked = 0
        self._step = _step_due(settings)
        self._stage = stage_due(settings, manifest)
        self._watchdog = Watchdog(self._end_stuck_process)
        # Held to look at `_life` and `_not_taking` and act on them, never while waiting.
        self._lock = threading.Lock()
        self._life: _Life | None = None
        self._not_taking = "it has not been started"
        self._draining = False
        self._stopping = threading.Event()
        self._started: queue.SimpleQueue[OmError | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="worker", daemon=True)

    @staticmethod
    def open(bundle: Path, settings: EngineSettings) -> WorkerEngine:
        """Read the manifest and settle the limits; the process is started by `start`.

        Raises:
            BundleError: The manifest is damaged or its buckets do not cover every step.
            ConfigError: A setting passes what the bundle was built for.
        """
        manifest = Manifest.read(bundle)
        return WorkerEngine(bundle, settings, manifest, resolve_limits(settings, manifest))

    def start(self, progress: Callable[[str], None]) -> None:
        """Start the device process; returns when it takes requests. A failure is final.

        Args:
            progress: Called in another thread with one line for each stage.

        Raises:
            OmError: It could not load, by the class and the words that it gave, or died.
            ShuttingDownError: `stop` was called meanwhile.
        """
        self._progress = progress
        self._thread.start()
        error = self._started.get()
        if error is not None:
            raise error

    async def submit(self, request: Request) -> TokenStream:
        """Queue a request; returns its stream once the device process has accepted it.

        Raises:
            RequestError: It can never run, or its id is that of a live request.
            OverloadedError: A queue limit is reached.
            NotReadyError: The device process is being started again.
            ShuttingDownError: Draining or stopped.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            life = self._require_taking()
            live = self._requests.enter(request, loop)
            life.process.send(Submit(live.ticket, request, time.monotonic()))
            if not self._watchdog.is_expecting:
                self._watchdog.expect(self._step)
        try:
            await live.accepted
        except asyncio.CancelledError:
            # A pending future is cancelled with its task, which `LiveRequests` sees; here the
            # answer was in before the cancellation.
            if not live.accepted.cancelled() and live.accepted.exception() is None:
                self.cancel(request.request_id)
            raise
        return live.stream

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a request that nobody needs to go on; does not wait, and never fails.

        Args:
            reason: STOP when the text layer found a stop string.
        """
        with self._lock:
            if self._life is not None and self._requests.may_cancel(request_id):
                self._life.process.send(Cancel(request_id, reason))

    async def flush_prefix_cache(self) -> int:
        """Forget all cached beginnings and say how many blocks; running requests go on.

        Raises:
            NotReadyError: The device process is being started again, with an empty cache.
            ShuttingDownError: Stopped.
        """
        num_blocks: int = await self._ask(Question.FLUSH)
        return num_blocks

    async def inspect(self) -> EngineState:
        """A look at the engine between two steps; its counts are those of the present process.

        Raises:
            NotReadyError: The device process is being started again.
            ShuttingDownError: Stopped.
        """
        state: EngineState = await self._ask(Question.INSPECT)
        return state

    def log_from(self, level: int) -> None:
        """Have the device process log from a level on, also while it runs a step."""
        with self._lock:
            if self._life is not None:
                self._life.process.send(LogFrom(level))

    def load(self) -> EngineLoad:
        """What the engine held after its last step; from any thread."""
        return self._counts.load

    def counters(self) -> EngineCounters:
        """What had happened until the last step; from any thread."""
        return self._counts.counters

    def drain(self) -> None:
        """Refuse new requests from now on; live ones go on. A process that dies stays dead."""
        self._draining = True

    def stop(self) -> None:
        """Abort all requests and end the process, by force when it does not end by itself."""
        self._draining = True
        self._stopping.set()
        with self._lock:
            life = self._life
        if life is not None:
            life.process.stop(LOAD_STOP_S if life.serving_since is None else STOP_S)
        if self._thread.is_alive():
            self._thread.join()

    async def _ask(self, question: Question) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._stopping.is_set():
                raise _shutting_down()
            life = self._require_life()
            ticket = self._num_asked = self._num_asked + 1
            self._asked[ticket] = answer
            life.process.send(Ask(ticket, question))
        return await answer

    def _require_taking(self) -> _Life:
        if self._draining:
            raise _shutting_down()
        return self._require_life()

    def _require_life(self) -> _Life:
        if self._life is None or self._not_taking:
            raise _not_ready(self._not_taking or "its process has just ended")
        return self._life

    # From here on: the worker thread, which all device processes are started in.

    def _main(self) -> None:
        self._watchdog.start()
        try:
            self._live_on(self._run_process(is_restart=False))
        except BaseException as error:  # a bug; whoever waits must not wait for ever
            logger.exception("the worker thread ended")
            self._started.put(DeviceError(f"the worker thread ended: {error!r}"))
            self._fail(f"the worker thread ended: {error!r}")
            self._end_requests(error_delta(repr(error)), _not_ready(repr(error)))
        finally:
            self._watchdog.close()

    def _live_on(self, life: _Life | None) -> None:
        """Start a new process after each death, until `stop`."""
        back_off = BackOff()
        if life is None or life.serving_since is None:
            return  # `start` has raised why
        while not self._stopping.is_set():
            delay_s = None
            if not self._draining:
                delay_s = back_off.next_delay_s(0.0 if life is None else life.served_s())
                logger.info("the device process is started again delay_s=%g", delay_s)
            if self._stopping.wait(delay_s):
                return
            self.num_restarts += 1
            life = self._run_process(is_restart=True)

    def _run_process(self, is_restart: bool) -> _Life | None:
        """One device process from start to end; None when there could be none."""
        level = logging.getLogger().getEffectiveLevel()
        start = Start(self._bundle, self.manifest.digest(), self._settings, level, is_restart)
        try:
            life = _Life(WorkerProcess(start), threading.Event())
        except OSError as error:
            self._bury(None, f"the device process cannot be started: {error}")
            return None
        logger.info("device process started pid=%d", life.process.pid)
        with self._lock:
            self._life = life
            if self._stopping.is_set():
                life.process.kill()
        self._watchdog.expect(self._stage)
        for message in life.process.messages():
            self._hear(life, message)
        with self._lock:
            self._life = None
        self._watchdog.relax()
        how = life.process.close()
        life.is_drained.set()
        self._bury(life, life.verdict or f"the device process (pid {life.process.pid}) {how}")
        return life

    def _hear(self, life: _Life, message: FromWorker) -> None:
        match message:
            case Report():
                self._take_report(life, message)
            case LogLine():
                log_again(message)
            case Progress(line, runs):
                self._progress(line)
                self._watchdog.expect(self._step if runs else self._stage)
            case Ready():
                self._watchdog.relax()
                self._begin_taking(life)
            case LoadFailed(error):
                life.load_error = error.restore()

    def _begin_taking(self, life: _Life) -> None:
        is_first = self.num_restarts == 0
        with self._lock:
            life.serving_since = time.monotonic()
            self._not_taking = ""
        if is_first:
            self._progress = lambda line: logger.info("device process stage=%r", line)
            self._started.put(None)
        else:
            logger.info("the device process serves again pid=%d", life.process.pid)
            self.on_recovered()

    def _take_report(self, life: _Life, report: Report) -> None:
        if not life.verdict:  # what is condemned has its counts closed
            self._counts.take(report.load, report.counters)
        self._requests.take(report)
        for ticket, reply in report.replies:
            answer = self._asked.pop(ticket, None)
            if answer is not None:  # else it was refused, as the process is condemned
                resolve(answer, reply)
        with self._lock:
            if report.is_busy or self._requests.num_unanswered:
                self._watchdog.expect(self._step)
            else:
                self._watchdog.relax()
        if report.device_error and not life.is_recycling:
            life.is_recycling = True
            self._fail(report.device_error)
            name, work = "worker-recycle", self._recycle
            threading.Thread(target=work, args=(life, report), name=name, daemon=True).start()
        if life.is_recycling and not len(self._requests):
            life.is_drained.set()

    def _bury(self, life: _Life | None, text: str) -> None:
        """A process is no more: tell everybody."""
        served = life is not None and life.serving_since is not None
        self._counts.end_process()
        if self._stopping.is_set():
            self._end_requests(TokenDelta((), finish_reason=FinishReason.ABORT), _shutting_down())
        elif served or self.num_restarts:
            if life is not None and life.load_error is not None:
                text = f"the device process could not load: {life.load_error}"
            self._fail(text)
            self._end_requests(error_delta(text), _not_ready(text))
        if not served and not self.num_restarts:
            self._started.put(self._why_never_served(life, text))

    def _why_never_served(self, life: _Life | None, text: str) -> OmError:
        if self._stopping.is_set():
            return ShuttingDownError("stopped while loading")
        if life is not None and life.load_error is not None:
            return life.load_error
        return DeviceError(f"while loading: {text}")

    # From here on: any thread of this object.

    def _fail(self, text: str) -> None:
        """Take no requests, and say why unless that was said."""
        with self._lock:
            if self._not_taking == text:
                return
            self._not_taking = text
        self.on_device_error(text)

    def _end_requests(self, last: TokenDelta, refusal: OmError) -> None:
        """End whatever waits for an answer of the device process."""
        assert last.finish_reason is not None
        num_ended = self._requests.end_all(last, refusal)
        self._counts.add_finished(last.finish_reason, num_ended)
        while self._asked:
            resolve(self._asked.popitem()[1], refusal)

    def _end_stuck_process(self, due: Due) -> None:
        """Called by the watchdog."""
        with self._lock:
            life = self._life
            if life is None:
                return
            life.verdict = (
                f"the device process (pid {life.process.pid}) {due.failing}, and was killed"
            )
        if life.serving_since is not None:
            self._fail(life.verdict)
            self._end_requests(error_delta(life.verdict), _not_ready(life.verdict))
        life.process.abort()

    def _recycle(self, life: _Life, report: Report) -> None:
        """End a process whose device failed, once the requests that can go on have ended."""
        is_drained = life.is_drained.wait(RECYCLE_S)
        life.verdict = f"the device process was ended after a device error: {report.device_error}"
        if not is_drained:
            self._end_requests(error_delta(life.verdict), _not_ready(life.verdict))
        life.process.stop(STOP_S)


def _step_due(settings: EngineSettings) -> Due:
    limit_s = settings.step_timeout_s
    return Due(limit_s, f"did not finish a step within step_timeout_s, {limit_s:g} s")


def stage_due(settings: EngineSettings, manifest: Manifest) -> Due:
    """A stage of loading reads all files at most, in calls that say nothing meanwhile."""
    num_bytes = sum(entry.size_bytes for entry in manifest.files)
    reading_s = num_bytes / LEAST_READ_BYTES_PER_S
    return Due(
        settings.load_timeout_s + reading_s,
        f"said nothing while loading for load_timeout_s, {settings.load_timeout_s:g} s, and the "
        f"{reading_s:.1f} s that reading the bundle may take",
    )


def _shutting_down() -> ShuttingDownError:
    return ShuttingDownError("the server is shutting down; send the request to another one")


def _not_ready(why: str) -> NotReadyError:
    return NotReadyError(
        f"the device is not ready, it is being started again ({why}); retry in a few seconds"
    )
