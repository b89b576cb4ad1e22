from __future__ import annotations

import asyncio
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest

from omruntime.errors import RequestError
from server.event_writer import EventWriter
from server.grpc_service import GrpcInferenceService
from server.interceptor import ErrorInterceptor
from server.lifecycle import Lifecycle
from server.pb import inference_pb2 as pb
from tests.server.wire_fakes import FakeGenerator


class LeftContext:
    """A call whose client has left: grpc fails what is sent just before it cancels the handler."""

    async def write(self, _event: object) -> None:
        raise grpc.aio.InternalError("Failed execute_batch")

    async def send_initial_metadata(self, _metadata: object) -> None:
        raise grpc.aio.InternalError("Failed execute_batch")

    async def abort(self, *_status: object) -> None:
        raise grpc.aio.InternalError("Failed execute_batch")

    def time_remaining(self) -> None:
        """None: the call has no deadline."""


def test_a_write_to_a_client_that_has_left_is_no_defect() -> None:
    writer = EventWriter(LeftContext(), 1.0)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(writer.write(pb.GenerateStreamResponse()))


def test_a_client_that_leaves_before_its_request_id_is_no_defect() -> None:
    async def ask(method: str, message: object) -> None:
        lifecycle = Lifecycle()
        lifecycle.begin_serving(FakeGenerator())
        service = GrpcInferenceService(lifecycle, "m", 1.0)
        await getattr(service, method)(message, LeftContext())

    prompt = pb.Prompt(text="x")
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(ask("GenerateStream", pb.GenerateStreamRequest(prompt=prompt)))
    score = pb.ScoreRequest(prompt=prompt, continuations=[pb.Continuation(text="y")])
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(ask("Score", score))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(EventWriter(LeftContext(), 1.0).open())


def test_a_client_that_leaves_before_its_error_is_no_defect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handler(_details: object) -> grpc.RpcMethodHandler:
        async def refuse(_message: object, _context: object) -> None:
            raise RequestError("wrong")

        return grpc.unary_unary_rpc_method_handler(refuse)

    async def call() -> None:
        details = SimpleNamespace(method="/x/y")
        wrapped = await ErrorInterceptor().intercept_service(handler, details)
        await wrapped.unary_unary(b"", LeftContext())

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(call())
    assert "unexpectedly" not in caplog.text
