"""OriginRecorder: remembers which route a task serves, and its caller's trace."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from server.origin import Origin, origin_var


class OriginRecorder:
    """ASGI middleware; sets `origin_var`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Remember the request and go on."""
        if scope["type"] == "http":
            headers = ((name.decode("latin-1"), value) for name, value in scope["headers"])
            # Always: the requests of one connection may share what earlier ones have set.
            origin_var.set(Origin.of(f"{scope['method']} {scope['path']}", headers))
        await self._app(scope, receive, send)
