"""The client's side of Session's frames: writing them, and who gets which of the server's.

Shared by the blocking and the asyncio session; knows neither threads nor event loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import grpc

from omruntime.errors import CallError, RequestError
from omruntime.sampling_params import SamplingParams
from server.client.arguments import CallOptions, Prompt
from server.client.messages import generate_stream_request
from server.grpc_messages import delta_from
from server.pb import inference_pb2 as pb
from server.text import TextDelta

# Events that may be on the way or wait for their reader, of one request: a fast model's in a round
# trip of a tenth of a second. What a slow reader leaves waits at the server, merged.
NUM_CREDITS = 16

_CODES = {code.value[0]: code.name for code in grpc.StatusCode}

Item = TextDelta | CallError | None
"""What a reader gets: a delta, why there are no more, or None behind the last one."""


class Credits:
    """What one reader has taken; grants again when half are used, to save frames."""

    def __init__(self) -> None:
        self._num_used = 0

    def use(self) -> int:
        """Count an event that was taken; how many credits to grant now, or 0."""
        self._num_used += 1
        if self._num_used < NUM_CREDITS // 2:
            return 0
        granted, self._num_used = self._num_used, 0
        return granted


def start_frame(
    prompt: Prompt, params: SamplingParams, options: CallOptions, timeout_s: float | None
) -> pb.SessionRequest:
    """The frame that begins a request.

    Raises:
        RequestError: A value cannot be sent.
    """
    start = pb.SessionStart(
        request=generate_stream_request(prompt, params, options),
        num_events=NUM_CREDITS,
        timeout_s=timeout_s,
    )
    return pb.SessionRequest(start=start)


def cancel_frame(request_id: str) -> pb.SessionRequest:
    """The frame that ends a request."""
    return pb.SessionRequest(cancel=pb.SessionCancel(request_id=request_id))


def credits_frame(request_id: str, num_events: int) -> pb.SessionRequest:
    """The frame that takes more events."""
    granted = pb.SessionCredits(request_id=request_id, num_events=num_events)
    return pb.SessionRequest(credits=granted)


@dataclass(slots=True)
class _Reader:
    """`put` is where its items go; `num_answers` have not ended."""

    put: Callable[[Item], None]
    num_answers: int


class Readers:
    """Whose frames are whose; one call at a time."""

    def __init__(self) -> None:
        self._by_id: dict[str, _Reader] = {}
        self._end: CallError | None = None

    def add(self, request_id: str, num_answers: int, put: Callable[[Item], None]) -> None:
        """Send the items of a request to `put`.

        Raises:
            RequestError: The id is that of a live request.
            CallError: The session has ended.
        """
        if self._end is not None:
            raise self._end
        if request_id in self._by_id:
            raise RequestError(
                f"request_id {request_id!r} is that of a live request of this session; choose "
                f"another one or wait for its end"
            )
        self._by_id[request_id] = _Reader(put, num_answers)

    def leave(self, request_id: str) -> bool:
        """Drop what still comes of a request; whether it was live."""
        reader = self._by_id.get(request_id)
        if reader is not None:
            reader.put = lambda _item: None
        return reader is not None

    def deliver(self, response: pb.SessionResponse) -> None:
        """Hand a frame of the server to its reader."""
        refusal, event = response.refusal, response.event
        if response.HasField("refusal"):
            reader = self._by_id.pop(refusal.request_id, None)
            if reader is not None:
                reader.put(_error_of(refusal))
            return
        reader = self._by_id.get(event.request_id)
        if reader is None:
            return
        delta = delta_from(event)
        reader.num_answers -= delta.finish_reason is not None
        if not reader.num_answers:
            # First, so that whoever has the last delta may use the id again.
            del self._by_id[event.request_id]
        reader.put(delta)
        if not reader.num_answers:
            reader.put(None)

    def end(self, error: CallError) -> None:
        """Tell all readers, and all later ones, that the session is over."""
        self._end = error
        for reader in self._by_id.values():
            reader.put(error)
        self._by_id.clear()


def _error_of(refusal: pb.SessionRefusal) -> CallError:
    code = _CODES.get(refusal.code, "UNKNOWN")
    retry_after_s = refusal.retry_after_s if refusal.HasField("retry_after_s") else None
    return CallError(code, refusal.message, retry_after_s)


def session_over(reason: str = "the session was closed") -> CallError:
    """What readers get when the session ended without an error of the call."""
    return CallError("CANCELLED", f"{reason}; open another one")
