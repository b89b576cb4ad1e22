"""RequestSession: many requests over one stream of frames, each answered as by GenerateStream.

Owns which requests of the stream are live, and what their clients take. What an event is, and
every limit of a single request, is the business of the path that all RPCs share.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from omruntime.errors import DuplicateRequestError, OmError, OverloadedError, RequestError
from server.event_writer import EventWriter
from server.failure import failure_of
from server.grpc_messages import require_known_fields
from server.interceptor import parse_message
from server.pb import inference_pb2 as pb
from server.security.callers import renew_caller
from server.session_credits import Credits

# A quarter of the default queue, so that one session by itself does not fill it for all others.
MAX_LIVE_REQUESTS = 256
_METHOD = "/omserve.v1.InferenceService/Session"

Events = AsyncGenerator[pb.GenerateStreamResponse, None]


@dataclass(frozen=True, slots=True)
class RequestPath:
    """What a session needs of the path that all RPCs share.

    Attributes:
        events: The events of a request that must end within so many seconds; closing the
            generator aborts it.
        abort: Ends a live request soon, by its id and its caller's tenant.
    """

    events: Callable[[pb.GenerateStreamRequest, float | None], Events]
    abort: Callable[[str, str | None], object]


@dataclass(slots=True)
class _Live:
    """A request of the session that has not ended.

    Attributes:
        tenant: Whose it is, as its caller's key says; None without keys.
        error: Why the server ended it; empty when the client did.
        has_gap: Whether an event was dropped, so that the answer cannot be whole.
    """

    credits: Credits
    tenant: str | None = None
    error: str = ""
    has_gap: bool = False


class RequestSession:
    """One RPC's worth of requests; for one event loop."""

    def __init__(self, path: RequestPath, writer: EventWriter, credit_timeout_s: float) -> None:
        """Prepare.

        Args:
            credit_timeout_s: A request that waits for a credit for so long is aborted.
        """
        self._path = path
        self._writer = writer
        self._credit_timeout_s = credit_timeout_s
        self._live: dict[str, _Live] = {}
        # A request whose last frame waits for the reader is no longer live, and still counts.
        self._num_open = 0

    async def run(self, frames: AsyncIterator[bytes]) -> None:
        """Serve until the client has closed its side and all requests have ended.

        Raises:
            RequestError: A frame is none, or says of no request what is wrong with it.
            OverloadedError: The reader took nothing for too long.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                async for raw in frames:
                    await self._take(raw, tasks)
        except ExceptionGroup as group:
            raise group.exceptions[0] from group

    async def _take(self, raw: bytes, tasks: asyncio.TaskGroup) -> None:
        """Act on one frame of the client."""
        frame = parse_message(pb.SessionRequest.FromString, raw)
        assert isinstance(frame, pb.SessionRequest)
        which = frame.WhichOneof("frame")
        if which == "start":
            await self._start(frame.start, tasks)
            return
        require_known_fields(frame)
        if which is None:
            raise RequestError("a frame is empty, wanted one of start, cancel and credits")
        request_id = getattr(frame, which).request_id
        if not request_id:
            raise RequestError(f"request_id of {which} is not set, wanted that of a request")
        if which == "credits" and frame.credits.num_events < 1:
            raise RequestError(
                f"num_events of credits is {frame.credits.num_events}, wanted at least 1"
            )
        live = self._live.get(request_id)
        if live is None:
            return  # it has ended, which its client could not know yet
        if which == "credits":
            live.credits.grant(frame.credits.num_events)
        else:
            self._end(request_id, live)

    async def _start(self, start: pb.SessionStart, tasks: asyncio.TaskGroup) -> None:
        request_id = start.request.request_id
        try:
            self._require_place(start)
        except OmError as error:
            # Written here and not by a task: a client that does not read sends no more frames.
            await self._writer.write(_refusal(request_id, error))
            return
        num_events = start.num_events if start.HasField("num_events") else None
        live = self._live[request_id] = _Live(Credits(num_events))
        self._num_open += 1
        tasks.create_task(self._answer(start, live))
        # A cancel may be the next frame: let the request begin, so that it can be found.
        await asyncio.sleep(0)

    def _require_place(self, start: pb.SessionStart) -> None:
        """Check what of a start is the session's own.

        Raises:
            RequestError: It has no id, that of a live request, or a wrong number.
            OverloadedError: Too many requests are live.
        """
        request_id = start.request.request_id
        if not request_id:
            raise RequestError(
                "request_id is not set; a session needs it, since it tells requests apart"
            )
        if start.num_events < 0:
            raise RequestError(f"num_events is {start.num_events}, wanted at least 0")
        if start.HasField("timeout_s") and not start.timeout_s > 0:
            raise RequestError(f"timeout_s is {start.timeout_s:g}, wanted above 0")
        if request_id in self._live:
            raise DuplicateRequestError(
                f"request_id {request_id[:140]!r} is that of a live request of this session; "
                f"choose another one or wait for its end"
            )
        if self._num_open >= MAX_LIVE_REQUESTS:
            raise OverloadedError(
                f"{self._num_open} requests of this session are live, its limit is "
                f"{MAX_LIVE_REQUESTS}; wait for one to end, or open another session"
            )

    async def _answer(self, start: pb.SessionStart, live: _Live) -> None:
        """Send all frames of one request."""
        try:
            async with aclosing(self._responses(start, live)) as responses:
                async for response in responses:
                    if await self._admits(response, live):
                        await self._writer.write(response)
        finally:
            self._num_open -= 1

    async def _responses(
        self, start: pb.SessionStart, live: _Live
    ) -> AsyncGenerator[pb.SessionResponse, None]:
        """What a request gets as if its client took everything; an error is the last of it."""
        request_id = start.request.request_id
        timeout_s = start.timeout_s if start.HasField("timeout_s") else None
        params = start.request.sampling_params
        num_answers = params.n if params.HasField("n") else 1
        try:
            caller = renew_caller()
            live.tenant = None if caller is None else caller.tenant
            require_known_fields(start)
            async with aclosing(self._path.events(start.request, timeout_s)) as events:
                async for event in events:
                    response = pb.SessionResponse(event=event)
                    num_answers -= event.finish_reason != pb.FINISH_REASON_UNSPECIFIED
                    if not num_answers:
                        break
                    yield response
        except Exception as error:
            response = _refusal(request_id, error)
        # Before the client hears of the end: it may use the id, and its key's place, at once.
        del self._live[request_id]
        yield response

    async def _admits(self, response: pb.SessionResponse, live: _Live) -> bool:
        """Whether a frame is to be sent now; waits for the client's credits."""
        if response.WhichOneof("frame") == "refusal":
            return True
        event = response.event
        if event.finish_reason != pb.FINISH_REASON_UNSPECIFIED:
            if live.has_gap:
                _cut(event, live.error)
            return True
        try:
            is_taken = await live.credits.take(self._credit_timeout_s)
        except TimeoutError:
            is_taken = False
            error = (
                f"no credit came for {self._credit_timeout_s:g} s, so the request was aborted; "
                f"grant credits as events are read"
            )
            self._end(event.request_id, live, error)
        live.has_gap |= not is_taken
        return is_taken

    def _end(self, request_id: str, live: _Live, error: str = "") -> None:
        """Abort a request; its events are dropped up to the terminal ones."""
        if not live.credits.closed:
            live.error = error
            live.credits.close()
            self._path.abort(request_id, live.tenant)


def _cut(event: pb.GenerateStreamResponse, error: str) -> None:
    """Make the end of an answer with a gap one that says so; its usage and timings stay."""
    for name in ("text", "token_ids", "logprobs", "prompt_logprobs", "matched_stop"):
        event.ClearField(name)
    if event.finish_reason != pb.FINISH_REASON_ERROR:
        event.finish_reason = pb.FINISH_REASON_ABORT
        event.error = error


def _refusal(request_id: str, error: Exception) -> pb.SessionResponse:
    failure = failure_of(error, _METHOD)
    refusal = pb.SessionRefusal(
        request_id=request_id,
        code=failure.code.value[0],
        message=failure.message,
        retry_after_s=failure.retry_after_s,
    )
    return pb.SessionResponse(refusal=refusal)
