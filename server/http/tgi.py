"""POST /generate, /generate_stream and /: the routes of text-generation-inference and MindIE."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from omruntime.errors import FieldError
from server.answers import join_deltas
from server.field_names import named_as
from server.http.error_schema import TGI_ERRORS
from server.http.events import EventStyle, event_stream
from server.http.field_names import TGI_NAMES
from server.http.gateway import Gateway, request_id_of, unless_gone
from server.http.tgi_errors import TgiRoute, tgi_error_of
from server.http.tgi_parts import TgiParts, TgiStream
from server.http.tgi_schema import GenerateBody, text_request_of
from server.text import TextRequest

_STYLE = EventStyle(error_of=lambda error: tgi_error_of(error)[1], end="")


def tgi_routes(gateway: Gateway) -> APIRouter:
    """The routes; their errors have that server's shape, too."""
    router = APIRouter(
        tags=["text-generation-inference"], route_class=TgiRoute, responses=TGI_ERRORS
    )

    @router.post("/generate")
    async def generate(body: GenerateBody, http: Request) -> Response:
        """Continue a text; as events when `stream` is set."""
        if body.stream:
            return await _streamed(gateway, body, http)
        return JSONResponse(await unless_gone(http, _whole(gateway, body, http)))

    @router.post("/generate_stream")
    async def generate_stream(body: GenerateBody, http: Request) -> Response:
        """Continue a text, an event for each token."""
        if body.stream is False:
            raise FieldError("stream", "stream is false; send the request to /generate")
        return await _streamed(gateway, body, http)

    @router.post("/")
    async def compat_generate(body: GenerateBody, http: Request) -> Response:
        """As /generate, a whole reply in a list, as Hugging Face's clients expect it."""
        if body.stream:
            return await _streamed(gateway, body, http)
        return JSONResponse([await unless_gone(http, _whole(gateway, body, http))])

    return router


def _parts(gateway: Gateway, body: GenerateBody, request: TextRequest) -> TgiParts:
    prefix = body.inputs if body.wanted.return_full_text else ""
    return TgiParts(gateway, request.params, prefix)


async def _whole(gateway: Gateway, body: GenerateBody, http: Request) -> dict[str, object]:
    with named_as(TGI_NAMES):
        request = text_request_of(body, request_id_of(http, "tgi"), streams=False)
        async with gateway.deltas(request) as deltas:
            (answer,) = join_deltas([delta async for delta in deltas])
    return await _parts(gateway, body, request).whole(answer, body.wanted.has_details)


async def _streamed(gateway: Gateway, body: GenerateBody, http: Request) -> Response:
    with named_as(TGI_NAMES):
        request = text_request_of(body, request_id_of(http, "tgi"), streams=True)

    async def events() -> AsyncGenerator[Mapping[str, object], None]:
        stream = TgiStream(_parts(gateway, body, request), bool(body.wanted.details))
        async with gateway.deltas(request) as deltas:
            async for delta in deltas:
                for event in await stream.accept(delta):
                    yield event

    with named_as(TGI_NAMES):
        return await event_stream(http, events(), _STYLE)
