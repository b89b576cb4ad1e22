"""RequestIdHeader: every reply to a request that has an id tells it, whatever became of it."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID_HEADER = "X-Request-Id"
_KEY = "omserve.request_id"


class RequestIdHeader:
    """ASGI middleware; sets the header."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its id back."""

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start" and _KEY in scope:
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = scope[_KEY]
            await send(message)

        await self._app(scope, receive, send_with_id)


def answer_with_id(scope: Scope, request_id: str) -> None:
    """Have the reply tell the id of the request that it answers."""
    scope[_KEY] = request_id
