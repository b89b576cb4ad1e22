"""HeaderLimit: refuses requests whose first lines are beyond a size.

The parser bounds only headers that come in pieces; those of one read, up to 256 KiB, pass it.
"""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from server.http.errors import error_body

# Of each header: a colon, a space and the end of the line.
_PUNCTUATION = 4


class HeaderLimit:
    """ASGI middleware; answers 431 to what is too large."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 431."""
        if scope["type"] != "http" or _num_bytes(scope) <= self._max_bytes:
            await self._app(scope, receive, send)
            return
        message = f"address and headers are larger than {self._max_bytes:,} bytes; send less"
        response = JSONResponse(error_body(431, message), 431, {"Connection": "close"})
        await response(scope, receive, send)


def _num_bytes(scope: Scope) -> int:
    target = len(scope["raw_path"]) + len(scope["query_string"])
    headers = scope["headers"]
    return target + sum(len(name) + len(value) + _PUNCTUATION for name, value in headers)
