"""TokenStream: the deltas of one request, from the engine's thread to one asyncio reader.

The buffer between the two holds one delta: what the reader has not taken yet is merged, so a
slow reader costs no more memory than its answer. Owns the crossing into event loops as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any

from omruntime.outputs import TokenDelta

logger = logging.getLogger(__name__)


class TokenStream:
    """An asynchronous iterator of `TokenDelta`; ends after the one with a finish reason."""

    def __init__(self, request_id: str, loop: asyncio.AbstractEventLoop) -> None:
        self.request_id = request_id
        self.loop = loop
        self._pending: TokenDelta | None = None
        self._ready = asyncio.Event()
        self._finished = False

    def put(self, delta: TokenDelta) -> None:
        """Add a delta; in the event loop's thread."""
        self._pending = delta if self._pending is None else merge(self._pending, delta)
        self._ready.set()

    def __aiter__(self) -> AsyncIterator[TokenDelta]:
        return self

    async def __anext__(self) -> TokenDelta:
        if self._finished:
            raise StopAsyncIteration
        await self._ready.wait()
        delta, self._pending = self._pending, None
        self._ready.clear()
        assert delta is not None, "ready without a delta"
        self._finished = delta.finish_reason is not None
        return delta


def merge(first: TokenDelta, second: TokenDelta) -> TokenDelta:
    """Two consecutive deltas as one."""
    return replace(
        second,
        token_ids=first.token_ids + second.token_ids,
        logprobs=first.logprobs + second.logprobs,
        prompt_logprobs=first.prompt_logprobs + second.prompt_logprobs,
    )


def deliver(deltas: Iterable[tuple[TokenStream, TokenDelta]]) -> None:
    """Hand deltas to their streams from any thread, with one wake-up for each event loop."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[TokenStream, TokenDelta]]]
    by_loop = defaultdict(list)
    for stream, delta in deltas:
        by_loop[stream.loop].append((stream, delta))
    for loop, pairs in by_loop.items():
        call_soon(loop, _put_all, pairs)


def _put_all(deltas: Iterable[tuple[TokenStream, TokenDelta]]) -> None:
    for stream, delta in deltas:
        stream.put(delta)


def resolve(future: asyncio.Future[Any], result: object) -> None:
    """Set a future of an event loop from any thread; an exception is raised there."""

    def set_result() -> None:
        if future.cancelled():
            return
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    call_soon(future.get_loop(), set_result)


def call_soon(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: object) -> None:
    """Run a call in an event loop; a loop that has ended has no reader left to tell."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        logger.warning("an event loop ended before its answers did")
