"""The HTTP application: all routes, and one translation of errors for them."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from omruntime.errors import OmError
from server.control.load_watch import LoadWatch
from server.grpc_server import MAX_HEADER_BYTES
from server.http.api_key import ApiKeyGate
from server.http.body_limit import BodyLimit
from server.http.chat import chat_routes
from server.http.completions import completion_routes
from server.http.error_schema import OPENAI_ERRORS
from server.http.errors import (
    answer_http_error,
    answer_invalid_body,
    answer_om_error,
    answer_unexpected,
)
from server.http.gateway import ClientGoneError, Gateway
from server.http.head_as_get import HeadAsGet
from server.http.header_limit import HeaderLimit
from server.http.metrics import metric_routes
from server.http.models import model_routes
from server.http.operations import operation_routes
from server.http.request_id import RequestIdHeader
from server.http.responses import response_routes
from server.http.tgi import tgi_routes
from server.http.tokenize import tokenizer_routes
from server.http.ui import ui_routes
from server.security.api_keys import ApiKeys
from server.version import omserve_version

ROUTES = (
    chat_routes,
    completion_routes,
    response_routes,
    tgi_routes,
    model_routes,
    operation_routes,
    tokenizer_routes,
)


def build_http_app(
    gateway: Gateway, watch: LoadWatch, max_body_bytes: int, keys: ApiKeys | None
) -> FastAPI:
    """Everything that answers over HTTP.

    Args:
        gateway: What the routes share.
        watch: What the server holds and has done.
        max_body_bytes: Larger bodies are refused before they are read.
        keys: One of them is asked for; None: none.
    """
    app = FastAPI(
        title="omserve", version=omserve_version(), openapi_url=None, responses=OPENAI_ERRORS
    )
    app.add_api_route("/openapi.json", lambda: JSONResponse(app.openapi()), include_in_schema=False)
    for routes in ROUTES:
        app.include_router(routes(gateway))
    for watching_routes in (metric_routes, ui_routes):
        app.include_router(watching_routes(watch))
    app.add_exception_handler(OmError, answer_om_error)
    app.add_exception_handler(RequestValidationError, answer_invalid_body)
    app.add_exception_handler(HTTPException, answer_http_error)
    app.add_exception_handler(ClientGoneError, _answer_nobody)
    app.add_exception_handler(Exception, answer_unexpected)
    app.add_middleware(BodyLimit, max_bytes=max_body_bytes)
    if keys is not None:
        # The last one added comes first.
        app.add_middleware(ApiKeyGate, keys=keys)
    app.add_middleware(HeaderLimit, max_bytes=MAX_HEADER_BYTES)
    app.add_middleware(RequestIdHeader)
    app.add_middleware(HeadAsGet)
    return app


async def _answer_nobody(_request: Request, _error: Exception) -> Response:
    """End a request whose client has gone; nginx's code for it, which only logs see."""
    return Response(status_code=499)
