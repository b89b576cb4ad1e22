"""What a session owes its client in moments that a socket shows once in a million times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
from google.protobuf.message import Message

from server.event_writer import EventWriter
from server.pb import inference_pb2 as pb
from server.session import Events, RequestPath, RequestSession


class Caller:
    """A client whose frames are there at once, and who answers before a write is over."""

    def __init__(self, *frames: pb.SessionRequest) -> None:
        self.received: list[pb.SessionResponse] = []
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._next: list[pb.SessionRequest] = []
        self.send(*frames)

    def send(self, *frames: pb.SessionRequest) -> None:
        for frame in frames:
            self._frames.put_nowait(frame.SerializeToString())

    def send_behind_the_next_frame(self, frame: pb.SessionRequest) -> None:
        self._next.append(frame)

    async def frames(self) -> AsyncIterator[bytes]:
        while (frame := await self._frames.get()) is not None:
            yield frame

    async def write(self, frame: Message) -> None:
        assert isinstance(frame, pb.SessionResponse)
        self.received.append(frame)
        self.send(*self._next)
        if not self._next:
            self._frames.put_nowait(None)
        self._next.clear()
        # The session acts on what was sent while this write is still under way.
        for _ in range(20):
            await asyncio.sleep(0)


class Path:
    """Requests that run until they are aborted, or end at once."""

    def __init__(self, runs_on: bool) -> None:
        self._runs_on = runs_on
        self._live: dict[str, asyncio.Event] = {}

    async def events(self, request: pb.GenerateStreamRequest, _: float | None) -> Events:
        reason = pb.FINISH_REASON_STOP
        if self._runs_on:
            self._live[request.request_id] = asyncio.Event()
            await self._live[request.request_id].wait()
            reason = pb.FINISH_REASON_ABORT
        yield pb.GenerateStreamResponse(request_id=request.request_id, finish_reason=reason)

    def abort(self, request_id: str, _: str | None) -> None:
        if request_id in self._live:
            self._live[request_id].set()


def start_frame() -> pb.SessionRequest:
    request = pb.GenerateStreamRequest(request_id="r")
    return pb.SessionRequest(start=pb.SessionStart(request=request))


async def run(caller: Caller, path: Path) -> list[pb.SessionResponse]:
    session = RequestSession(
        RequestPath(path.events, path.abort), EventWriter(caller, 5.0), credit_timeout_s=5.0
    )
    async with asyncio.timeout(5):
        await session.run(caller.frames())
    return caller.received


def test_a_cancel_that_is_there_with_its_start_is_not_lost() -> None:
    async def work() -> None:
        cancel = pb.SessionRequest(cancel=pb.SessionCancel(request_id="r"))
        (frame,) = await run(Caller(start_frame(), cancel), Path(runs_on=True))
        assert frame.event.finish_reason == pb.FINISH_REASON_ABORT

    asyncio.run(work())


def test_an_id_is_free_while_the_last_event_is_on_its_way() -> None:
    async def work() -> None:
        caller = Caller(start_frame())
        caller.send_behind_the_next_frame(start_frame())
        frames = await run(caller, Path(runs_on=False))
        assert [frame.event.finish_reason for frame in frames] == [pb.FINISH_REASON_STOP] * 2
        assert grpc.StatusCode.ALREADY_EXISTS.value[0] not in {f.refusal.code for f in frames}

    asyncio.run(work())
