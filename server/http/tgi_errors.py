"""Errors as clients of text-generation-inference know them: a text and a kind of theirs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from omruntime.errors import (
    NotReadyError,
    OmError,
    OverloadedError,
    RequestError,
    ShuttingDownError,
)
from server.http.errors import headers_of, invalid_body_of
from server.http.json_route import JsonRoute
from server.security.redaction import public_text

_BY_CLASS: tuple[tuple[type[OmError], int, str], ...] = (
    (OverloadedError, 429, "overloaded"),
    (NotReadyError, 503, "overloaded"),
    (ShuttingDownError, 503, "overloaded"),
    (RequestError, 422, "validation"),
    (OmError, 424, "generation"),
)


class TgiRoute(JsonRoute):
    """A route whose errors have that shape."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's handler, and what it raises as an answer."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                message, _ = invalid_body_of(error)
                return JSONResponse({"error": message, "error_type": "validation"}, 422)
            except OmError as error:
                status, body = tgi_error_of(error)
                return JSONResponse(body, status, headers_of(error, status))

        return answer


def tgi_error_of(error: OmError) -> tuple[int, dict[str, object]]:
    """Status and body of one of our errors."""
    _, status, kind = next(row for row in _BY_CLASS if isinstance(error, row[0]))
    return status, {"error": public_text(error), "error_type": kind}
