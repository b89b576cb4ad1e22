"""Puts the dialects on a gRPC server, and tells their names and messages for reflection."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc
import grpc.aio
from google.protobuf.message import Message

from omruntime.errors import NotBuiltInError
from server.dialects import kserve_messages, vllm_messages
from server.dialects.kserve_service import KServeService
from server.dialects.private_pool import Dialect, PrivateMessages
from server.dialects.reflection_pool import ReflectionPool
from server.dialects.vllm_service import VllmEngineService
from server.lifecycle import Lifecycle
from server.seams import EngineLike


def add_dialects(
    server: grpc.aio.Server, parts: tuple[Lifecycle, EngineLike], model: str, timeout_s: float
) -> None:
    """Let the server answer every dialect; `timeout_s` is that of slow readers."""
    lifecycle, engine = parts
    kserve, vllm = kserve_messages, vllm_messages
    handlers = {
        kserve.KSERVE.full_name: _handlers_of(
            kserve.KSERVE, kserve.MESSAGES, KServeService(lifecycle, model, timeout_s)
        )
        | _refusals(kserve.KSERVE, kserve.REFUSED_METHODS),
        vllm.VLLM.full_name: _handlers_of(
            vllm.VLLM, vllm.MESSAGES, VllmEngineService(lifecycle, engine, model, timeout_s)
        )
        | _refusals(vllm.VLLM, vllm.REFUSED_METHODS),
    }
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(name, methods) for name, methods in handlers.items()]
    )


def reflection_pool() -> ReflectionPool:
    """All messages that a client can ask reflection for."""
    return ReflectionPool((kserve_messages.MESSAGES.pool, vllm_messages.MESSAGES.pool))


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
