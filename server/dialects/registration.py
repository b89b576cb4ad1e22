"""Puts the dialects on a gRPC server, and tells their names and messages for reflection."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc
import grpc.aio
from google.protobuf.message import Message

from omruntime.errors import NotBuiltInError
from server.dialects.kserve_messages import KSERVE, MESSAGES, REFUSED_METHODS
from server.dialects.kserve_service import KServeService
from server.dialects.private_pool import Dialect, PrivateMessages
from server.dialects.reflection_pool import ReflectionPool
from server.lifecycle import Lifecycle


def add_dialects(
    server: grpc.aio.Server, lifecycle: Lifecycle, model: str, slow_reader_timeout_s: float
) -> None:
    """Let the server answer every dialect; arguments as of `GrpcInferenceService`."""
    service = KServeService(lifecycle, model, slow_reader_timeout_s)
    handlers = _handlers_of(KSERVE, MESSAGES, service) | _refusals(KSERVE, REFUSED_METHODS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(KSERVE.full_name, handlers),)
    )


def reflection_pool() -> ReflectionPool:
    """All messages that a client can ask reflection for."""
    return ReflectionPool((MESSAGES.pool,))


def _handlers_of(
    dialect: Dialect, messages: PrivateMessages, service: object
) -> dict[str, grpc.RpcMethodHandler]:
    handlers = {}
    for method in dialect.methods:
        behavior = getattr(service, method.name)
        parse: Callable[[bytes], Message] | None
        parse = messages.message_class(method.request).FromString
        if method.streams_requests:
            # Its messages are read one by one, so that a wrong one does not end the stream.
            make, parse = grpc.stream_stream_rpc_method_handler, None
        elif method.streams_responses:
            make = grpc.unary_stream_rpc_method_handler
        else:
            make = grpc.unary_unary_rpc_method_handler
        handlers[method.name] = make(
            behavior, request_deserializer=parse, response_serializer=_serialize
        )
    return handlers


def _refusals(dialect: Dialect, names: Sequence[str]) -> dict[str, grpc.RpcMethodHandler]:
    def refusing(name: str) -> grpc.RpcMethodHandler:
        async def refuse(_: bytes, __: grpc.aio.ServicerContext) -> None:
            raise NotBuiltInError(f"{dialect.full_name}/{name} is not built into this server")

        return grpc.unary_unary_rpc_method_handler(refuse)

    return {name: refusing(name) for name in names}


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
