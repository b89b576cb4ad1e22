"""GET /ui: a page that shows what the server does, live; its files, and the events that feed it.

The files are the package's own and hold nothing of the server, so they need no key; the events
do, and so does the chat box, which calls `/v1/chat/completions` like any client.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from importlib import resources

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse

from server.control.load_watch import DEFAULT_INTERVAL_S, LoadWatch
from server.control.messages import snapshot_json
from server.http.events import event_stream

PAGE_PATH = "/ui"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_FILES = ("style.css", "main.js", "sse.js", "figures.js", "charts.js", "tables.js", "chat.js")
PAGE_PATHS = (PAGE_PATH, *(f"{PAGE_PATH}/{name}" for name in _FILES))
"""What answers without a key."""

_HEADERS = {
    # Nothing from elsewhere, nothing inline, and in nobody's frame.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # A newer server's page must not run an older one's scripts.
    "Cache-Control": "no-cache",
}


def ui_routes(watch: LoadWatch) -> APIRouter:
    """The page, its files and its events."""
    router = APIRouter(tags=["operations"], include_in_schema=False)
    router.add_api_route(PAGE_PATH, _file("index.html"), methods=["GET"])

    @router.get("/")
    async def begin() -> Response:
        """Where people with a browser begin; relative, since a proxy may put a path before it."""
        return RedirectResponse(PAGE_PATH.removeprefix("/"))

    for name in _FILES:
        router.add_api_route(f"{PAGE_PATH}/{name}", _file(name), methods=["GET"])

    @router.get(f"{PAGE_PATH}/events")
    async def events(http: Request, interval_s: float = DEFAULT_INTERVAL_S) -> StreamingResponse:
        """WatchLoad's events with details, as JSON."""
        return await event_stream(http, _events(watch, interval_s))

    return router


async def _events(
    watch: LoadWatch, interval_s: float
) -> AsyncGenerator[Mapping[str, object], None]:
    async with aclosing(watch.snapshots(interval_s, details=True)) as snapshots:
        async for snapshot in snapshots:
            yield snapshot_json(snapshot)


def _file(name: str) -> Callable[[], Awaitable[Response]]:
    content = (resources.files(__package__) / "page" / name).read_bytes()
    media_type = f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8"

    async def answer() -> Response:
        return Response(content, media_type=media_type, headers=_HEADERS)

    return answer
