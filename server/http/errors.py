"""What an error looks like over HTTP: status code, headers and OpenAI's error body.

Which status an error class has is `server/status.py`'s.
"""

from __future__ import annotations

import logging
import math
import reprlib
import secrets
from collections.abc import Sequence
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from omruntime.errors import (
    OmError,
    PromptTooLongError,
    RequestError,
    UnauthenticatedError,
    UnknownModelError,
)
from server.security.redaction import public_text
from server.status import retry_after_of, status_of

logger = logging.getLogger(__name__)

# Where nothing better is known, as while loading or draining. Clients that retry at once would
# only be refused again.
RETRY_AFTER_S = 1
_TYPES = {403: "permission_error", 429: "rate_limit_error"}
_CODES = {
    401: "invalid_api_key",
    413: "request_too_large",
    429: "rate_limit_exceeded",
    503: "service_unavailable",
}

# What OpenAI's clients look for beside the status.
_CODES_BY_CLASS: dict[type[OmError], str] = {
    UnknownModelError: "model_not_found",
    PromptTooLongError: "context_length_exceeded",
}


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, object]:
    """OpenAI's error object for an HTTP status."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    code = code or _CODES.get(status)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def body_of(error: OmError) -> tuple[int, dict[str, object]]:
    """Status and body of one of our errors."""
    status = status_of(error).http_status
    param = error.param if isinstance(error, RequestError) else None
    code = next((code for cls, code in _CODES_BY_CLASS.items() if isinstance(error, cls)), None)
    return status, error_body(status, public_text(error), param, code)


async def answer_om_error(_request: Request, error: Exception) -> JSONResponse:
    """Answer a request that one of our errors ended before its first byte."""
    assert isinstance(error, OmError)
    return response_to(error)


def response_to(error: OmError) -> JSONResponse:
    """The answer to a request that one of our errors ended before its first byte."""
    status, body = body_of(error)
    return JSONResponse(body, status, headers_of(error, status))


def headers_of(error: OmError, status: int) -> dict[str, str]:
    """When to try again, in whole seconds as HTTP has it, and in OpenAI's milliseconds."""
    if isinstance(error, UnauthenticatedError):
        return {"WWW-Authenticate": "Bearer", "Connection": "close"}
    wait_s = retry_after_of(error)
    if wait_s is None:
        return {"Retry-After": str(RETRY_AFTER_S)} if status in (429, 503) else {}
    return {
        "Retry-After": str(max(1, math.ceil(wait_s))),
        "Retry-After-Ms": str(max(1, math.ceil(wait_s * 1000))),
    }


async def answer_invalid_body(_request: Request, error: Exception) -> JSONResponse:
    """Answer a body that is no JSON or has a field of the wrong type."""
    assert isinstance(error, RequestValidationError)
    message, param = invalid_body_of(error)
    return JSONResponse(error_body(400, message, param), 400)


def invalid_body_of(error: RequestValidationError) -> tuple[str, str | None]:
    """What is wrong with a body, and the field's name."""
    errors = error.errors()
    first = errors[0]
    place = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        fault = first.get("ctx", {}).get("error", first["msg"])
        # 0 is also what has no place, as a whole body that is not UTF-8.
        at = f" at character {place[0]}" if place != ["0"] else ""
        return f"the body is not JSON: {fault}{at}", None
    if isinstance(first.get("input"), bytes):
        # Only a body that is not said to be JSON comes here unread.
        return (
            "the body is not said to be JSON; send the header content-type: application/json",
            None,
        )
    name = ".".join(place)
    message = f"{name or 'body'}{_complaint(first)}"
    if first["type"] == "missing" and (unknown := _unknown_fields(errors)):
        message += f"; no fields here: {unknown}"
    return message, place[0] if place else None


def _unknown_fields(errors: Sequence[dict[str, Any]]) -> str:
    """What probably stands for the missing one, under a name of another server's."""
    extra = [error["loc"] for error in errors if error["type"] == "extra_forbidden"]
    return ", ".join(str(loc[1])[:64] for loc in extra[:8] if len(loc) == 2)


def _complaint(error: dict[str, Any]) -> str:
    """What follows a field's name."""
    if error["type"] == "missing":
        return " is missing; set it"
    # Not the whole of a list of a million.
    given = reprlib.repr(error.get("input"))[:200]
    if error["type"] == "extra_forbidden":
        return f" is no field here; leave it out, or see /openapi.json for its name; got {given}"
    return f": {error['msg']}; got {given}"


async def answer_http_error(request: Request, error: Exception) -> JSONResponse:
    """Answer an unknown path or a wrong method."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}{_way_out(request, error)}"
    return JSONResponse(error_body(error.status_code, message), error.status_code, error.headers)


def _way_out(request: Request, error: HTTPException) -> str:
    """The path or method that was probably meant."""
    if error.status_code == 405:
        return f"; wanted {(error.headers or {}).get('Allow', 'another method')}"
    if error.status_code != 404:
        return ""
    asked = request.url.path
    for meant in (f"/v1{asked}", asked.removeprefix("/v1")):
        scope = {**request.scope, "path": meant}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            return f"; wanted {meant}: mend the client's base URL"
    return "; GET /openapi.json lists the routes"


async def answer_unexpected(request: Request, error: Exception) -> JSONResponse:
    """Answer a defect of ours; the log has its details under the id."""
    error_id = secrets.token_hex(8)
    logger.error(
        "HTTP request failed unexpectedly path=%s error_id=%s",
        request.url.path,
        error_id,
        exc_info=error,
    )
    message = f"internal error {error_id}; the server's log has the details under this id"
    return JSONResponse(error_body(500, message), 500)
