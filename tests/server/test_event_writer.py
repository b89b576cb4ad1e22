from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from server.event_writer import EventWriter
from server.pb import inference_pb2 as pb


class LeftContext:
    """A call whose client has left: grpc fails the write just before it cancels the handler."""

    async def write(self, _event: object) -> None:
        raise grpc.aio.InternalError("Failed execute_batch")


def test_a_write_to_a_client_that_has_left_is_no_defect() -> None:
    writer = EventWriter(LeftContext(), 1.0)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(writer.write(pb.GenerateStreamResponse()))
