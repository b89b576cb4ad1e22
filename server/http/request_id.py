"""RequestIdHeader: every reply tells the request's id, or else what the client called it."""

from __future__ import annotations

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID_HEADER = "X-Request-Id"
_KEY = "omserve.request_id"
_GIVEN = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class RequestIdHeader:
    """ASGI middleware; sets the header."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its id back."""

        async def send_with_id(message: Message) -> None:
            found = scope.get(_KEY) or given_id(Headers(scope=scope))
            if message["type"] == "http.response.start" and found:
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = found
            await send(message)

        await self._app(scope, receive, send_with_id)


def given_id(headers: Headers) -> str:
    """What the client calls a request; empty when that is nothing an id can begin with."""
    given = headers.get(REQUEST_ID_HEADER, "")
    return given if _GIVEN.fullmatch(given) else ""


def answer_with_id(scope: Scope, request_id: str) -> None:
    """Have the reply tell the id of the request that it answers."""
    scope[_KEY] = request_id
