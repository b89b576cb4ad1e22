"""What refusals look like in `/openapi.json`, in OpenAI's and text-generation-inference's shape.

Without these the framework would promise a 422 of its own, which no route here answers with.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    """What is wrong, as OpenAI's clients read it."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body that `errors.error_body` makes."""

    error: ErrorDetail


class TgiErrorBody(BaseModel):
    """The body that `tgi_errors.tgi_error_of` makes."""

    error: str
    error_type: str


class StateBody(BaseModel):
    """What probes read."""

    state: str


_WHAT = "Refused; the message says what was got, what was wanted and what to do."

OPENAI_ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {"model": ErrorBody, "description": _WHAT}
}
# Keys, sizes and paths are refused before a route is known, so in OpenAI's shape.
TGI_ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {"model": TgiErrorBody | ErrorBody, "description": _WHAT}
}
NOT_SO: dict[int | str, dict[str, Any]] = {
    503: {"model": StateBody, "description": "Not so; the state says why."}
}
