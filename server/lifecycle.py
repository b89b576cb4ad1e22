"""Lifecycle: what the server does at the moment, and how many requests run.

One object, read by every front end, changed by `app.py` alone. All calls belong to the event
loop. Knows nothing of gRPC, HTTP or signals.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from enum import Enum

from omruntime.errors import NotReadyError, OmError, ShuttingDownError
from server.control.request_counts import RequestCounts
from server.request_tally import Arrival, RequestTally
from server.seams import RequestObserver, TextGeneratorLike
from server.security.redaction import without_paths


class ServerState(Enum):
    """LOADING to SERVING to DRAINING; FAILED after a device error, until a device is back."""

    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"
    FAILED = "failed"


class Lifecycle:
    """The server's state and its running requests; fits `RequestObserver`, for all observers.

    Attributes:
        detail: One line for humans: the stage of loading, or the device error.
        listeners: Called with the state after each change of it, or of `is_overloaded`.
        counts: Of all requests since start.
        observers: Told of every request that ended or was refused, and of its tokens.
        entry: Entered by every request for as long as it runs; may refuse it.
        is_overloaded: Whether new requests had better go elsewhere; they are taken all the same.
    """

    def __init__(self) -> None:
        self.state = ServerState.LOADING
        self.detail = "starting"
        self.listeners: list[Callable[[ServerState], None]] = []
        self.counts = RequestCounts()
        self.observers: list[RequestObserver] = [self.counts]
        self.entry: Callable[[], AbstractContextManager[None]] = nullcontext
        self.is_overloaded = False
        self._generator: TextGeneratorLike | None = None
        self._started_at = time.monotonic()
        self._refuses = False
        self._num_running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def uptime_s(self) -> float:
        """Seconds since the object was made, by a monotonic clock."""
        return time.monotonic() - self._started_at

    def begin_serving(self, generator: TextGeneratorLike) -> None:
        """Take requests from now on, unless draining has begun meanwhile."""
        self._generator = generator
        if self.state is ServerState.LOADING:
            self._enter(ServerState.SERVING, "")

    @property
    def is_ready(self) -> bool:
        """Whether a load balancer had better send requests here."""
        return self.state is ServerState.SERVING and not self.is_overloaded

    def set_overloaded(self, is_overloaded: bool) -> None:
        """Say whether too much waits."""
        if is_overloaded != self.is_overloaded:
            self.is_overloaded = is_overloaded
            self._tell_listeners()

    @property
    def is_refusing(self) -> bool:
        """Whether new requests are refused, as the server drains."""
        return self._refuses

    def announce_draining(self) -> None:
        """Turn unhealthy, and still take requests: who sends them learns of it a little later."""
        self._enter(ServerState.DRAINING, "shutting down")

    def begin_draining(self) -> None:
        """Refuse new requests from now on."""
        self._refuses = True
        self._enter(ServerState.DRAINING, "shutting down")

    def fail(self, text: str) -> None:
        """Turn unhealthy after a device error; a server that drains goes on draining."""
        if self.state is not ServerState.DRAINING:
            self._enter(ServerState.FAILED, without_paths(text))

    def recover(self) -> None:
        """Serve again after `fail`."""
        if self.state is ServerState.FAILED:
            self._enter(ServerState.SERVING, "")

    def _enter(self, state: ServerState, detail: str) -> None:
        self.state = state
        self.detail = detail
        self._tell_listeners()

    def _tell_listeners(self) -> None:
        for listener in self.listeners:
            listener(self.state)

    @property
    def is_loaded(self) -> bool:
        """Whether the engine has come up."""
        return self._generator is not None

    def require_loaded(self) -> TextGeneratorLike:
        """The text generator, also while draining.

        Raises:
            NotReadyError: Still loading.
        """
        if self._generator is None:
            raise NotReadyError(
                f"the server is still loading ({self.detail}); retry when its health is SERVING"
            )
        return self._generator

    def require_serving(self) -> TextGeneratorLike:
        """The text generator, for a new request.

        After a device error requests still go to the engine, which knows whether it goes on;
        only the health tells load balancers to stay away.

        Raises:
            NotReadyError: Still loading.
            ShuttingDownError: Draining.
        """
        try:
            if self._refuses:
                raise ShuttingDownError("the server is shutting down; send the request elsewhere")
            return self.require_loaded()
        except OmError as error:
            self.refused(error)
            raise

    def finished(self, tally: RequestTally) -> None:
        """Tell the observers of a request that is over."""
        for observer in self.observers:
            observer.finished(tally)

    def arrived(self, arrival: Arrival) -> None:
        """Tell the observers of tokens that reached their reader."""
        for observer in self.observers:
            observer.arrived(arrival)

    def refused(self, error: OmError) -> None:
        """Tell the observers of a request that was not taken."""
        for observer in self.observers:
            observer.refused(error)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count a request as running; draining waits for it.

        Raises:
            OmError: `entry` refuses it.
        """
        with ExitStack() as entered:
            try:
                entered.enter_context(self.entry())
            except OmError as error:
                self.refused(error)
                raise
            self._num_running += 1
            self._idle.clear()
            try:
                yield
            finally:
                self._num_running -= 1
                if not self._num_running:
                    self._idle.set()

    @property
    def num_running(self) -> int:
        """How many requests run."""
        return self._num_running

    async def wait_idle(self) -> None:
        """Return when no request runs."""
        await self._idle.wait()
