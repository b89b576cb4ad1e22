"""ErrorInterceptor: every failure of an RPC becomes a status code here, and nowhere else.

Also reads the requests' bytes, as grpc answers malformed ones with UNKNOWN and a traceback; health
and reflection, whose handlers come with grpc, pass through it for that.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from omruntime.errors import NotBuiltInError, RequestError
from server.dialects.names import DIALECT_NAMES
from server.event_writer import until_reader_leaves
from server.failure import failure_of
from server.grpc_messages import require_known_fields
from server.retry_info import retry_metadata
from server.value_limit import require_few_values

_OUR_PREFIXES = ("/omserve.", *(f"/{name}/" for name in DIALECT_NAMES))

# A request is a message, or bytes; of a streaming client it is an iterator of those.
_Behavior = Callable[[Any, grpc.aio.ServicerContext], Any]
_Parse = Callable[[bytes], Message]


# grpc has no types here, so its classes are Any to mypy.
class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Wraps each handler; handlers are coroutines, streaming ones too, but for reflection's."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Look up a handler and put the translation around it."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return handler
        is_ours = method.startswith(_OUR_PREFIXES)
        if handler.request_streaming:
            # Ours read their frames one by one, so that a wrong one need not end the stream.
            parse = None if is_ours else handler.request_deserializer
            behavior = _reading(handler.stream_stream, parse)
            wrap = grpc.stream_stream_rpc_method_handler
        else:
            read = read_message if is_ours else parse_message
            wrap, inner = (
                (grpc.unary_stream_rpc_method_handler, handler.unary_stream)
                if handler.response_streaming
                else (grpc.unary_unary_rpc_method_handler, handler.unary_unary)
            )
            behavior = _reading_one(inner, handler.request_deserializer, read)
        return wrap(
            _translating(behavior, method),
            # None: the bytes as they came.
            request_deserializer=None,
            response_serializer=handler.response_serializer,
        )


def _reading_one(
    behavior: _Behavior, parse: _Parse | None, read: Callable[[_Parse, bytes], Message]
) -> _Behavior:
    async def call(raw: bytes, context: grpc.aio.ServicerContext) -> object:
        return await behavior(raw if parse is None else read(parse, raw), context)

    return call


def _reading(behavior: _Behavior, parse: _Parse | None) -> _Behavior:
    async def messages(raws: AsyncIterator[bytes]) -> AsyncIterator[bytes | Message]:
        async for raw in raws:
            yield raw if parse is None else parse_message(parse, raw)

    async def call(raws: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> object:
        replies = behavior(messages(raws), context)
        if not inspect.isasyncgen(replies):
            return await replies
        async for reply in replies:
            await context.write(reply)
        return None

    return call


def _translating(behavior: _Behavior, method: str) -> _Behavior:
    async def call(raw: Any, context: grpc.aio.ServicerContext) -> object:
        try:
            return await behavior(raw, context)
        except grpc.aio.AbortError:
            raise
        except NotImplementedError:
            error: Exception = NotBuiltInError(f"{method} is not built into this server")
        except Exception as raised:
            error = raised
        failure = failure_of(error, method)
        metadata = retry_metadata(failure.code, failure.message, failure.retry_after_s)
        with until_reader_leaves():
            return await context.abort(failure.code, failure.message, metadata)

    return call


def read_message(parse: _Parse, raw: bytes) -> Message:
    """Read a request from its bytes.

    Raises:
        RequestError: They are not such a message, or one of too many values.
        NotBuiltInError: The message has fields that are not known here.
    """
    message = parse_message(parse, raw)
    require_known_fields(message)
    return message


def parse_message(parse: _Parse, raw: bytes) -> Message:
    """As `read_message`, for callers that look at unknown fields themselves."""
    try:
        message = parse(raw)
    except DecodeError as error:
        raise RequestError(
            f"the request's {len(raw)} bytes are not the protobuf message of this RPC: {error}"
        ) from error
    require_few_values(message, len(raw))
    return message
