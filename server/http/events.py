"""Server-sent events: how a stream of chunks is written.

A fault after the first byte becomes one error event and the end of the stream, without what ends
others, such as `[DONE]`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import StreamingResponse

from omruntime.errors import OmError
from server.http.errors import body_of
from server.http.gateway import ClientGoneError, until_gone

# No proxy may buffer the stream, no client guess the charset.
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
MEDIA_TYPE = "text/event-stream; charset=utf-8"

Chunks = AsyncGenerator[Mapping[str, object], None]


@dataclass(frozen=True, slots=True)
class EventStyle:
    """How a family of routes writes its events.

    Attributes:
        error_of: The event of an error after the first byte.
        end: What follows the last event of a stream without an error.
        is_named: Whether each event's line of type repeats its chunk's `type`.
    """

    error_of: Callable[[OmError], Mapping[str, object]] = lambda error: body_of(error)[1]
    end: str = "data: [DONE]\n\n"
    is_named: bool = False


OPENAI = EventStyle()


async def event_stream(
    http: Request, chunks: Chunks, style: EventStyle = OPENAI
) -> StreamingResponse:
    """Stream chunks as events.

    Raises:
        OmError: The request was refused before its first chunk, so no event was sent.
        ClientGoneError: The client went away before it.
    """
    try:
        first = await _first(http, chunks)
    except BaseException:
        await chunks.aclose()
        raise
    events = _events(first, chunks, style)
    return StreamingResponse(events, headers=HEADERS, media_type=MEDIA_TYPE)


async def _first(http: Request, chunks: Chunks) -> Mapping[str, object]:
    """The first chunk, for which nobody may be waiting any more.

    It is made in this task, as what is set there for the log holds for the whole stream.
    """
    loop = asyncio.get_running_loop()
    gone = asyncio.ensure_future(until_gone(http))
    try:
        async with asyncio.timeout(None) as limit:

            def end(_: object) -> None:
                with suppress(RuntimeError):  # the chunk has come just now
                    limit.reschedule(loop.time())

            gone.add_done_callback(end)
            return await anext(chunks)
    except TimeoutError:
        if limit.expired():
            raise ClientGoneError from None
        raise
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)


async def _events(
    first: Mapping[str, object], chunks: Chunks, style: EventStyle
) -> AsyncGenerator[str, None]:
    # Closed when the client goes away, which aborts the request.
    async with aclosing(chunks):
        yield _event(first, style)
        try:
            async for chunk in chunks:
                yield _event(chunk, style)
        except OmError as error:
            yield _event(style.error_of(error), style)
            return
        yield style.end


def _event(chunk: Mapping[str, object], style: EventStyle) -> str:
    name = f"event: {chunk['type']}\n" if style.is_named else ""
    return f"{name}data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"
