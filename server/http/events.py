"""Server-sent events: how a stream of chunks is written.

A fault after the first byte becomes one error event and the end of the stream, never `[DONE]`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from fastapi.responses import StreamingResponse

from omruntime.errors import OmError
from server.http.errors import body_of

# No proxy may buffer the stream, no client guess the charset.
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
MEDIA_TYPE = "text/event-stream; charset=utf-8"

Chunks = AsyncGenerator[Mapping[str, object], None]


async def event_stream(chunks: Chunks) -> StreamingResponse:
    """Stream chunks as events, and `[DONE]` after the last.

    Raises:
        OmError: The request was refused before its first chunk, so no event was sent.
    """
    try:
        first = await anext(chunks)
    except BaseException:
        await chunks.aclose()
        raise
    return StreamingResponse(_events(first, chunks), headers=HEADERS, media_type=MEDIA_TYPE)


async def _events(first: Mapping[str, object], chunks: Chunks) -> AsyncGenerator[str, None]:
    # Closed when the client goes away, which aborts the request.
    async with aclosing(chunks):
        yield _event(first)
        try:
            async for chunk in chunks:
                yield _event(chunk)
        except OmError as error:
            yield _event(body_of(error)[1])
            return
        yield "data: [DONE]\n\n"


def _event(chunk: Mapping[str, object]) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"
