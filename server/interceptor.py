"""ErrorInterceptor: every failure of an RPC becomes a status code here, and nowhere else.

Also reads the request's bytes, as grpc answers malformed ones with UNKNOWN and a traceback.

Only our own services and the dialects pass through it; health and reflection answer for themselves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from omruntime.errors import RequestError
from server.dialects.names import DIALECT_NAMES
from server.failure import failure_of
from server.grpc_messages import require_known_fields
from server.retry_info import retry_metadata

_OUR_PREFIXES = ("/omserve.", *(f"/{name}/" for name in DIALECT_NAMES))

# A request is a message, or bytes; of a streaming client it is an iterator of bytes.
_Behavior = Callable[[Any, grpc.aio.ServicerContext], Awaitable[object]]
_Parse = Callable[[bytes], Message]


# grpc has no types here, so its classes are Any to mypy.
class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Wraps each handler of our services; handlers are coroutines, streaming ones too."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Look up a handler and put the translation around it."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith(_OUR_PREFIXES):
            return handler
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                _translating(handler.stream_stream, None, method),
                request_deserializer=None,
                response_serializer=handler.response_serializer,
            )
        wrap, behavior = (
            (grpc.unary_stream_rpc_method_handler, handler.unary_stream)
            if handler.response_streaming
            else (grpc.unary_unary_rpc_method_handler, handler.unary_unary)
        )
        return wrap(
            _translating(behavior, handler.request_deserializer, method),
            # None: the bytes as they came.
            request_deserializer=None,
            response_serializer=handler.response_serializer,
        )


def _translating(behavior: _Behavior, parse: _Parse | None, method: str) -> _Behavior:
    async def call(raw: Any, context: grpc.aio.ServicerContext) -> object:
        try:
            return await behavior(raw if parse is None else read_message(parse, raw), context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            failure = failure_of(error, method)
            metadata = retry_metadata(failure.code, failure.message, failure.retry_after_s)
            return await context.abort(failure.code, failure.message, metadata)

    return call


def read_message(parse: _Parse, raw: bytes) -> Message:
    """Read a request from its bytes.

    Raises:
        RequestError: They are not such a message.
        NotBuiltInError: The message has fields that are not known here.
    """
    message = parse_message(parse, raw)
    require_known_fields(message)
    return message


def parse_message(parse: _Parse, raw: bytes) -> Message:
    """As `read_message`, for callers that look at unknown fields themselves."""
    try:
        return parse(raw)
    except DecodeError as error:
        raise RequestError(
            f"the request's {len(raw)} bytes are not the protobuf message of this RPC: {error}"
        ) from error
