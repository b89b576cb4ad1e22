"""ClientSession: many requests over one stream, for any number of threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import grpc

from omruntime.owner_process import OwnerProcess
from omruntime.sampling_params import SamplingParams
from server.client.arguments import CallOptions, Prompt
from server.client.messages import call_error
from server.client.retries import Retries, retried_stream
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


class ClientSession:
    """An open session; use it as a context manager.

    A reader that takes its time holds up no other: each request has credits of its own, granted
    as its deltas are taken. One that takes none for the server's --slow-reader-timeout-s loses
    its request.
    """

    def __init__(
        self,
        open_call: Callable[[Iterator[pb.SessionRequest]], Any],
        target: str,
        retries: Retries,
    ) -> None:
        """Open the session with a call that takes frames; `Client.session` is the way here."""
        self._target = target
        self._retries = retries
        self._owner = OwnerProcess("this ClientSession")
        self._sent: queue.SimpleQueue[pb.SessionRequest | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._readers = Readers()
        self._call = open_call(iter(self._sent.get, None))
        self._thread = threading.Thread(target=self._read, name="session", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what runs and end the session; nothing in a forked child."""
        if self._owner.is_here:
            self._sent.put(None)
            self._call.cancel()
            self._thread.join()

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams = _DEFAULT_PARAMS,
        options: CallOptions = _DEFAULT_OPTIONS,
    ) -> Generator[TextDelta, None, None]:
        """As `Client.stream`, over this session; closing the generator cancels the request.

        The request ends with ABORT and an error when `timeout_s` has passed.

        Raises:
            RequestError: A value cannot be sent, or the id is that of a live request.
            CallError: The request was refused, or the session has ended.
        """
        self._owner.require()
        if options.request_id is None:
            options = replace(options, request_id=uuid4().hex)
        return retried_stream(
            self._retries,
            options.timeout_s,
            lambda left_s: self._stream_once(prompt, params, options, left_s),
        )

    def _stream_once(
        self, prompt: Prompt, params: SamplingParams, options: CallOptions, left_s: float | None
    ) -> Generator[TextDelta, None, None]:
        request_id = str(options.request_id)
        frame = start_frame(prompt, params, options, left_s)
        items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        with self._lock:
            self._readers.add(request_id, params.n, items.put)
        self._sent.put(frame)
        granted = Credits()
        try:
            while (item := items.get()) is not None:
                if not isinstance(item, TextDelta):
                    raise item
                yield item
                if item.finish_reason is None and (num_events := granted.use()):
                    self._sent.put(credits_frame(request_id, num_events))
        finally:
            with self._lock:
                is_live = self._readers.leave(request_id)
            if is_live:
                self._sent.put(cancel_frame(request_id))

    def _read(self) -> None:
        """Hand on what comes, in a thread of its own."""
        end = session_over()
        try:
            for response in self._call:
                with self._lock:
                    self._readers.deliver(response)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                end = call_error(error, self._target)
        with self._lock:
            self._readers.end(end)
        self._sent.put(None)
