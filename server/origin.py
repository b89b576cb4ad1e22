"""Origin: which call of which client the current task serves, for traces.

Set at the ports, and only when traces are wanted. Nothing decides by it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass

import grpc
import grpc.aio

# W3C Trace Context; other headers are none of the traces' business.
_HEADERS = ("traceparent", "tracestate")


@dataclass(frozen=True, slots=True)
class Origin:
    """A call.

    Attributes:
        name: The RPC or the route, such as `POST /v1/completions`.
        headers: The caller's place in its own trace, as it came.
    """

    name: str
    headers: dict[str, str]

    @staticmethod
    def of(name: str, headers: Iterable[tuple[str, str | bytes]]) -> Origin:
        """Keep what belongs to traces; names of headers are in lower case."""
        kept = {
            key: value if isinstance(value, str) else value.decode("latin-1")
            for key, value in headers
            if key in _HEADERS
        }
        return Origin(name, kept)


origin_var: ContextVar[Origin | None] = ContextVar("origin", default=None)
"""What the current task serves; None when no traces are wanted."""


# grpc has no types here, so its classes are Any to mypy.
class OriginInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Sets `origin_var` for the RPC's task."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Remember the call and go on."""
        name = handler_call_details.method.removeprefix("/")
        origin_var.set(Origin.of(name, handler_call_details.invocation_metadata))
        return await continuation(handler_call_details)
