"""ApiKeyInterceptor: no RPC without a key, but the health checks.

Health answers everybody, as probes cannot carry secrets and it says one word. Reflection asks for
a key like all else: its tools send the header along, and strangers need not learn what is here.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import grpc
import grpc.aio

from omruntime.errors import UnauthenticatedError
from server.security.api_keys import HEADER, ApiKeys
from server.security.callers import authenticate_var, renew_caller
from server.status import status_of

logger = logging.getLogger(__name__)

OPEN_SERVICE = "/grpc.health.v1.Health/"


# grpc has no types here, so its classes are Any to mypy.
class ApiKeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Sets `caller_var` for the RPC's task, or refuses the RPC before its message is read."""

    def __init__(self, keys: ApiKeys) -> None:
        """Let the holders of these keys in."""
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Look up a handler for whom may use it."""
        method = handler_call_details.method
        if method.startswith(OPEN_SERVICE):
            return await continuation(handler_call_details)
        try:
            values = [
                value if isinstance(value, str) else value.decode("latin-1")
                for name, value in handler_call_details.invocation_metadata
                if name == HEADER
            ]
            authenticate_var.set(partial(self._keys.authenticate, values))
            renew_caller()
        except UnauthenticatedError as error:
            return _refusal(method, error)
        return await continuation(handler_call_details)


def _refusal(method: str, error: UnauthenticatedError) -> grpc.RpcMethodHandler:
    async def refuse(_messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        code = status_of(error).grpc_code
        logger.info("RPC refused method=%s code=%s peer=%s", method, code.name, context.peer())
        await context.abort(code, str(error))

    # Of all kinds the one whose handler begins before any message is read.
    return grpc.stream_stream_rpc_method_handler(refuse)
