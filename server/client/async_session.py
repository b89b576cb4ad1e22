"""AsyncClientSession: `ClientSession` for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import grpc

from omruntime.errors import CallError
from omruntime.sampling_params import SamplingParams
from server.client.arguments import CallOptions, Prompt
from server.client.messages import call_error
from server.client.retries import Retries, retried_async_stream
from server.client.session_frames import (
    Credits,
    Item,
    Readers,
    cancel_frame,
    credits_frame,
    session_over,
    start_frame,
)
from server.pb import inference_pb2 as pb
from server.text import TextDelta

_DEFAULT_PARAMS = SamplingParams()
_DEFAULT_OPTIONS = CallOptions()


class AsyncClientSession:
    """As `ClientSession`; use it as an asynchronous context manager within one event loop."""

    def __init__(
        self,
        open_call: Callable[[AsyncIterator[pb.SessionRequest]], Any],
        target: str,
        retries: Retries,
    ) -> None:
        """Open the session with a call that takes frames; `AsyncClient.session` is the way here."""
        self._target = target
        self._retries = retries
        self._sent: asyncio.Queue[pb.SessionRequest | None] = asyncio.Queue()
        self._readers = Readers()
        self._call = open_call(self._frames())
        self._task = asyncio.create_task(self._read())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel what runs and end the session."""
        self._call.cancel()
        await self._task

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams = _DEFAULT_PARAMS,
        options: CallOptions = _DEFAULT_OPTIONS,
    ) -> AsyncGenerator[TextDelta, None]:
        """As `ClientSession.stream`; wrap it in `contextlib.aclosing` when leaving early."""
        if options.request_id is None:
            options = replace(options, request_id=uuid4().hex)
        return retried_async_stream(
            self._retries,
            options.timeout_s,
            lambda left_s: self._stream_once(prompt, params, options, left_s),
        )

    async def _stream_once(
        self, prompt: Prompt, params: SamplingParams, options: CallOptions, left_s: float | None
    ) -> AsyncGenerator[TextDelta, None]:
        request_id = str(options.request_id)
        frame = start_frame(prompt, params, options, left_s)
        items: asyncio.Queue[Item] = asyncio.Queue()
        self._readers.add(request_id, params.n, items.put_nowait)
        self._sent.put_nowait(frame)
        granted = Credits()
        try:
            while (item := await items.get()) is not None:
                if not isinstance(item, TextDelta):
                    raise item
                yield item
                if item.finish_reason is None and (num_events := granted.use()):
                    self._sent.put_nowait(credits_frame(request_id, num_events))
        finally:
            if self._readers.leave(request_id):
                self._sent.put_nowait(cancel_frame(request_id))

    async def _frames(self) -> AsyncIterator[pb.SessionRequest]:
        while (frame := await self._sent.get()) is not None:
            yield frame

    async def _read(self) -> None:
        """Hand on what comes until the session ends."""
        end: CallError = session_over()
        try:
            async for response in self._call:
                self._readers.deliver(response)
        except grpc.RpcError as error:
            end = call_error(error, self._target)
        except asyncio.CancelledError:
            # grpc raises it in place of a status when `close` has cancelled the call.
            if not self._call.cancelled():
                raise
        finally:
            self._readers.end(end)
            self._sent.put_nowait(None)
