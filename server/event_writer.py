"""EventWriter: a stream of replies, written by one or several tasks; slow readers are cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import grpc.aio
from google.protobuf.message import Message

from omruntime.errors import OverloadedError


@contextmanager
def until_reader_leaves() -> Iterator[None]:
    """Send something; that the call has ended under us is no defect.

    Raises:
        CancelledError: It has; grpc is about to cancel the call's handler for that.
    """
    try:
        yield
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None


class EventWriter:
    """Writes one event at a time, as gRPC demands."""

    def __init__(self, context: grpc.aio.ServicerContext, timeout_s: float) -> None:
        """Write to `context`; a reader that takes nothing for `timeout_s` is cut off."""
        self.context = context
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        """Send the initial metadata, without any.

        For streams whose handler may fail while one of its tasks writes: the first event would
        still have the metadata with it, and grpc cannot send a status beside that.
        """
        with until_reader_leaves():
            await self.context.send_initial_metadata(())

    async def write(self, event: Message) -> None:
        """Send an event; waits while the reader's window is full.

        Raises:
            OverloadedError: The reader took nothing for too long.
            CancelledError: The reader has left.
        """
        async with self._lock:
            try:
                async with asyncio.timeout(self._timeout_s):
                    with until_reader_leaves():
                        await self.context.write(event)
            except TimeoutError:
                raise OverloadedError(
                    f"the reader took nothing for {self._timeout_s:g} s, so the call and its "
                    f"requests were ended; read the stream as it comes"
                ) from None
