"""TokenStream: the deltas of one request, from the engine thread to one asyncio reader.

The buffer between the two holds one delta: what the reader has not taken yet is merged, so a
slow reader costs no more memory than its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

from omruntime.outputs import TokenDelta


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
    )


def deliver(deltas: Iterable[tuple[TokenStream, TokenDelta]]) -> None:
    """Hand deltas to streams of one event loop; in that loop's thread."""
    for stream, delta in deltas:
        stream.put(delta)
