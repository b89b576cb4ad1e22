"""BodyLimit: refuses request bodies beyond a size without reading them whole."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.errors import error_body


class BodyLimit:
    """ASGI middleware; a body that announces its size is refused before its first byte."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 413."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _announced_bytes(scope) > self._max_bytes:
            await self._refuse(scope, receive, send)
            return
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                # The one exception that the reading of a body lets through.
                raise HTTPException(413, self._message(), {"Connection": "close"})
            return message

        await self._app(scope, counted, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = error_body(413, self._message())
        await JSONResponse(body, 413, {"Connection": "close"})(scope, receive, send)

    def _message(self) -> str:
        return f"the body is larger than {self._max_bytes:,} bytes; send less at once"


def _announced_bytes(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
