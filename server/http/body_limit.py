"""BodyLimit: refuses request bodies beyond a size, without reading them whole, or beyond a time.

Text of any size is parsed in no time, but each value of a body is an object; millions of them
would hold up everybody's streams for seconds and take a hundred times their size. So values are
counted, too, by what stands between them.
"""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.errors import error_body

# For a whole body: the largest by default, 16 MiB, over a line of 1 Mbit/s.
READ_TIMEOUT_S = 150.0
# Commas and opening brackets, those of texts as well: as many as the longest prompt that is
# tokenised has characters. Parsing so many takes about a tenth of a second.
MAX_VALUES = 262_144
_SEPARATORS = (b",", b"[", b"{")
_TOO_MANY = (
    f"the body has more than {MAX_VALUES:,} values (commas and opening brackets); send less at once"
)


_TWO_LENGTHS = (
    "the request has both content-length and transfer-encoding, so that a proxy may see its end "
    "elsewhere; send one"
)


class BodyLimit:
    """ASGI middleware; a body that announces its size is refused before its first byte."""

    def __init__(
        self, app: ASGIApp, max_bytes: int, read_timeout_s: float = READ_TIMEOUT_S
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._read_timeout_s = read_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 413, or 400 to one whose end is not clear."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _has_two_lengths(scope):
            await self._refuse(400, _TWO_LENGTHS, scope, receive, send)
            return
        if _announced_bytes(scope) > self._max_bytes:
            await self._refuse(413, self._message(), scope, receive, send)
            return
        num_bytes = num_values = 0
        deadline: float | None = asyncio.get_running_loop().time() + self._read_timeout_s

        async def counted() -> Message:
            nonlocal num_bytes, num_values, deadline
            message = await self._received(receive, deadline)
            body = message.get("body", b"")
            num_bytes += len(body)
            num_values += sum(map(body.count, _SEPARATORS))
            if not message.get("more_body"):
                deadline = None  # what comes now is the client's leaving, whenever it likes
            if num_bytes > self._max_bytes:
                # The one exception that the reading of a body lets through.
                raise HTTPException(413, self._message(), {"Connection": "close"})
            if num_values > MAX_VALUES:
                raise HTTPException(413, _TOO_MANY, {"Connection": "close"})
            return message

        await self._app(scope, counted, send)

    async def _received(self, receive: Receive, deadline: float | None) -> Message:
        try:
            async with asyncio.timeout_at(deadline):
                return await receive()
        except TimeoutError:
            message = f"the body took longer than {self._read_timeout_s:g} s; send it faster"
            raise HTTPException(408, message, {"Connection": "close"}) from None

    async def _refuse(
        self, status: int, message: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        response = JSONResponse(error_body(status, message), status, {"Connection": "close"})
        await response(scope, receive, send)

    def _message(self) -> str:
        return f"the body is larger than {self._max_bytes:,} bytes; send less at once"


def _has_two_lengths(scope: Scope) -> bool:
    """Whether the body's end is told in two ways, of which the parser takes one."""
    names = {name for name, _ in scope["headers"]}
    return {b"content-length", b"transfer-encoding"} <= names


def _announced_bytes(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
