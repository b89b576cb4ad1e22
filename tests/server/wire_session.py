"""A client of Session that sends the frames it is told to, and hides nothing of what comes."""

from __future__ import annotations

import queue
from collections import defaultdict
from types import TracebackType
from typing import Any, Self

import grpc

from server.pb import inference_pb2 as pb

SESSION = "/omserve.v1.InferenceService/Session"


class WireSession:
    """One open session; frames arrive when they are asked for.

    Attributes:
        frames: Of the server, by request id, as far as they were read.
    """

    def __init__(self, target: str, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self._channel = grpc.insecure_channel(target)
        self._sent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # Bytes go as they are, so that tests can send what no client would.
        self.call = self._channel.stream_stream(
            SESSION, response_deserializer=pb.SessionResponse.FromString
        )(iter(self._sent.get, None), metadata=metadata, timeout=20)
        self.frames: defaultdict[str, list[pb.SessionResponse]] = defaultdict(list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.call.cancel()
        self.hang_up()

    def hang_up(self) -> None:
        """Close the connection."""
        self._sent.put(None)
        self._channel.close()

    def send(self, raw: bytes) -> None:
        self._sent.put(raw)

    def start(self, request_id: str, num_events: int | None = None, **fields: Any) -> None:
        """Begin a request; fields are those of GenerateStreamRequest, or timeout_s."""
        timeout_s = fields.pop("timeout_s", None)
        fields = {"prompt": pb.Prompt(text="Hello"), **fields}
        request = pb.GenerateStreamRequest(request_id=request_id, **fields)
        start = pb.SessionStart(request=request, num_events=num_events, timeout_s=timeout_s)
        self.send(pb.SessionRequest(start=start).SerializeToString())

    def cancel(self, request_id: str) -> None:
        cancel = pb.SessionCancel(request_id=request_id)
        self.send(pb.SessionRequest(cancel=cancel).SerializeToString())

    def grant(self, request_id: str, num_events: int | None) -> None:
        granted = pb.SessionCredits(request_id=request_id, num_events=num_events)
        self.send(pb.SessionRequest(credits=granted).SerializeToString())

    def close_own_side(self) -> None:
        self._sent.put(None)

    def read(self) -> pb.SessionResponse:
        """The next frame, whoever it is for."""
        frame: pb.SessionResponse = next(self.call)
        self.frames[id_of(frame)].append(frame)
        return frame

    def read_of(self, request_id: str) -> pb.SessionResponse:
        """The next frame of one request; those of others are kept in `frames`."""
        while id_of(frame := self.read()) != request_id:
            pass
        return frame

    def read_end(self, request_id: str) -> pb.SessionResponse:
        """The last frame of one request with a single answer."""
        while not is_end(frame := self.read_of(request_id)):
            pass
        return frame

    def read_all(self) -> grpc.StatusCode:
        """Read to the end of the session; its status."""
        try:
            while True:
                self.read()
        except StopIteration:
            return grpc.StatusCode.OK
        except grpc.RpcError as error:
            code = error.code()
            assert isinstance(code, grpc.StatusCode)
            return code

    def text_of(self, request_id: str) -> str:
        return "".join(f.event.text for f in self.frames[request_id])

    def ends_of(self, request_id: str) -> list[int]:
        """The finish reason of each terminal event."""
        return [f.event.finish_reason for f in self.frames[request_id] if f.event.finish_reason]


def id_of(frame: pb.SessionResponse) -> str:
    return frame.refusal.request_id or frame.event.request_id


def is_end(frame: pb.SessionResponse) -> bool:
    return frame.HasField("refusal") or bool(frame.event.finish_reason)
