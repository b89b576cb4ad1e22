"""ApiKeyGate: no request without a key, but the probes, and the files of the page that asks for it.

/health and /ready answer everybody, as probes cannot carry secrets and they say one word.
/metrics and /version do not: how much is used, and which version may be attacked, is not for
strangers, and Prometheus can send a key.
"""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Receive, Scope, Send

from omruntime.errors import UnauthenticatedError
from server.http.errors import response_to
from server.http.ui import PAGE_PATHS
from server.security.api_keys import HEADER, ApiKeys
from server.security.callers import caller_var

logger = logging.getLogger(__name__)

OPEN_PATHS = ("/health", "/ready")
# The way to the page; POST is a route that generates.
_OPEN_TO_GET = "/"


class ApiKeyGate:
    """ASGI middleware; sets `caller_var`, or answers 401 before a body is read."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        caller = None
        if not _is_open(scope):
            try:
                caller = self._keys.authenticate(_values(scope))
            except UnauthenticatedError as error:
                await self._refuse(error, scope, receive, send)
                return
        # Always: the requests of one connection may share what earlier ones have set.
        caller_var.set(caller)
        await self._app(scope, receive, send)

    async def _refuse(
        self, error: UnauthenticatedError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        logger.info("HTTP request refused status=401 peer=%s", scope.get("client"))
        await response_to(error)(scope, receive, send)


def _is_open(scope: Scope) -> bool:
    if scope["type"] != "http":
        return False
    path = scope["path"]
    if path == _OPEN_TO_GET:
        return bool(scope["method"] == "GET")
    return path in (*OPEN_PATHS, *PAGE_PATHS)


def _values(scope: Scope) -> list[str]:
    return [
        value.decode("latin-1")
        for name, value in scope.get("headers", ())
        if name == HEADER.encode()
    ]
