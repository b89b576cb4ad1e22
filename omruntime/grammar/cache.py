"""GrammarCache: compiles constraints in a thread of its own and keeps the latest used grammars.

A grammar takes milliseconds to seconds to compile, so neither the engine thread nor an event loop
may do it. One thread is enough: whoever sends many large constraints waits for themselves, and a
core stays for the others.
"""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from omruntime.constraint import Constraint
from omruntime.errors import OmError, OverloadedError, RequestError, ShuttingDownError
from omruntime.sampling.token_matcher import Grammar, GrammarCompiler

# A service uses a handful of schemas; most take a quarter of a megabyte.
MAX_GRAMMARS = 64
# Of the constraints' texts: eight of the largest schemas. A grammar takes up to 350 bytes for each
# sign of it, so all that are kept take at most some 180 MB beside what answers find out.
MAX_CHARS = 524_288
# Beyond that a new one would wait for minutes behind large ones.
MAX_WAITING = 64
# A usual schema compiles in milliseconds, a large one in seconds.
RETRY_S = 1.0
# Seconds without a new constraint after which the compiler may rest.
REST_S = 60.0
CLOSE_S = 2.0

_Key = tuple[str | tuple[str, ...], ...]


class _Work(NamedTuple):
    constraint: Constraint
    future: Future[Grammar]


class GrammarCache:
    """Compiled grammars by constraint; every call from any thread."""

    def __init__(self, open_compiler: Callable[[], GrammarCompiler]) -> None:
        """Begin empty; the thread starts with the first constraint.

        Args:
            open_compiler: Called once, in that thread; what it raises refuses each constraint.
        """
        self._open_compiler = open_compiler
        self._lock = threading.Lock()
        self._grammars: OrderedDict[_Key, Future[Grammar]] = OrderedDict()
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._compiler: GrammarCompiler | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._grammars)

    def submit(self, constraint: Constraint) -> Future[Grammar]:
        """The grammar of a constraint, once it is compiled; equal ones are compiled once.

        Returns:
            Raises RequestError when the constraint is refused. Nobody may cancel it.

        Raises:
            OverloadedError: Too many wait to be compiled.
            ShuttingDownError: Closed.
        """
        with self._lock:
            if self._is_closed:
                raise _closed()
            future = self._grammars.get(constraint.key)
            if future is not None and _is_worn(future):
                future = None
            if future is None:
                future = self._begin(constraint)
            self._grammars.move_to_end(constraint.key)
            return future

    def _begin(self, constraint: Constraint) -> Future[Grammar]:
        if self._work.qsize() >= MAX_WAITING:
            raise OverloadedError.until(
                f"{MAX_WAITING} constraints wait to be compiled already", RETRY_S
            )
        future: Future[Grammar] = Future()
        self._grammars[constraint.key] = future
        self._drop_oldest()
        self._work.put(_Work(constraint, future))
        if self._thread is None:
            # A daemon, so that no compilation holds up the end of the process.
            self._thread = threading.Thread(target=self._run, name="grammars", daemon=True)
            self._thread.start()
        return future

    def _drop_oldest(self) -> None:
        """Keep to the limits; what is not compiled yet is bounded by its own."""
        num_chars = sum(map(_num_chars, self._grammars))
        for key in [key for key, future in self._grammars.items() if future.done()]:
            if len(self._grammars) <= MAX_GRAMMARS and num_chars <= MAX_CHARS:
                return
            del self._grammars[key]
            num_chars -= _num_chars(key)

    def close(self) -> None:
        """End the thread and what the compiler holds; what waits is refused."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._is_closed = True
        if thread is None:
            return
        self._work.put(None)
        if self._compiler is not None:
            self._compiler.close()
        # A compilation in this process is not to be stopped; it ends by itself.
        thread.join(CLOSE_S)

    def _run(self) -> None:
        while (work := self._next()) is not None:
            constraint, future = work
            try:
                if self._is_closed:
                    raise _closed()
                if self._compiler is None:
                    self._compiler = self._open_compiler()
                grammar = self._compiler.compile(constraint)
            except OmError as error:
                if isinstance(error, RequestError):
                    error.param = "constraint"
                future.set_exception(error)
            # A bug, of ours or the library's, whose panics are no `Exception`; whoever waits
            # must end.
            except BaseException as error:
                failure = RequestError(
                    f"constraint.{constraint.kind} failed to compile: {error}", "constraint"
                )
                failure.__cause__ = error
                future.set_exception(failure)
            else:
                future.set_result(grammar)
            del constraint, future, work
        if self._compiler is not None:
            self._compiler.close()

    def _next(self) -> _Work | None:
        """Wait for work; None at the end."""
        try:
            return self._work.get(timeout=REST_S)
        except queue.Empty:
            if self._compiler is not None:
                self._compiler.rest()
            return self._work.get()


def _num_chars(key: _Key) -> int:
    return sum(len(part) if isinstance(part, str) else sum(map(len, part)) for part in key)


def _closed() -> ShuttingDownError:
    return ShuttingDownError("no constraint is compiled any more, the engine is shutting down")


def _is_worn(future: Future[Grammar]) -> bool:
    """Whether a grammar is of no more use, or an error may be over by now."""
    if not future.done():
        return False
    return future.exception() is not None or not future.result().is_intact
