"""ErrorInterceptor: every failure of an RPC becomes a status code here, and nowhere else.

Also reads the request's bytes, as grpc answers malformed ones with UNKNOWN and a traceback.

Only our own services and the dialects pass through it; health and reflection answer for themselves.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from omruntime.errors import OmError, RequestError
from server.dialects.names import DIALECT_NAMES
from server.grpc_messages import require_known_fields
from server.redaction import public_text
from server.retry_info import retry_metadata
from server.status import retry_after_of, status_of

logger = logging.getLogger(__name__)

# A status message travels in HTTP/2 trailers, which peers bound at 8 KiB or more, all told; one
# over the bound turns the whole status into another one. Percent-encoding may treble it.
MAX_MESSAGE_CHARACTERS = 1000

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
        except OmError as error:
            return await _abort(context, method, error)
        except Exception:
            error_id = secrets.token_hex(8)
            logger.exception("RPC failed unexpectedly method=%s error_id=%s", method, error_id)
            return await context.abort(
                grpc.StatusCode.INTERNAL,
                f"internal error {error_id}; the server's log has the details under this id",
            )

    return call


def read_message(parse: _Parse, raw: bytes) -> Message:
    """Read a request from its bytes.

    Raises:
        RequestError: They are not such a message.
        NotBuiltInError: The message has fields that are not known here.
    """
    try:
        message = parse(raw)
    except DecodeError as error:
        raise RequestError(
            f"the request's {len(raw)} bytes are not the protobuf message of this RPC: {error}"
        ) from error
    require_known_fields(message)
    return message


async def _abort(context: grpc.aio.ServicerContext, method: str, error: OmError) -> object:
    code = status_of(error).grpc_code
    logger.info("RPC refused method=%s code=%s", method, code.name)
    message = _shortened(public_text(error))
    return await context.abort(code, message, retry_metadata(code, message, retry_after_of(error)))


def _shortened(message: str) -> str:
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    half = MAX_MESSAGE_CHARACTERS // 2 - 4
    return f"{message[:half]} [...] {message[-half:]}"
