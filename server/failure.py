"""Failure: what a caller is told of an error, be it the end of an RPC or of one request in it."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass

import grpc

from omruntime.errors import OmError
from server.security.redaction import public_text
from server.status import retry_after_of, status_of

logger = logging.getLogger(__name__)

# A status message travels in HTTP/2 trailers, which peers bound at 8 KiB or more, all told; one
# over the bound turns the whole status into another one. Percent-encoding may treble it.
MAX_MESSAGE_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class Failure:
    """The outside look of an error.

    Attributes:
        message: At most `MAX_MESSAGE_CHARACTERS`, without paths of this machine.
        retry_after_s: Seconds after which the same request may pass; None when nobody can tell.
    """

    code: grpc.StatusCode
    message: str
    retry_after_s: float | None = None


def failure_of(error: Exception, method: str) -> Failure:
    """Log an error, and say of it what its caller may read.

    What is no `OmError` is a defect: the caller gets an id, under which the log has the details.
    """
    if isinstance(error, OmError):
        code = status_of(error).grpc_code
        logger.info("RPC refused method=%s code=%s", method, code.name)
        return Failure(code, _shortened(public_text(error)), retry_after_of(error))
    error_id = secrets.token_hex(8)
    logger.error("RPC failed unexpectedly method=%s error_id=%s", method, error_id, exc_info=error)
    text = f"internal error {error_id}; the server's log has the details under this id"
    return Failure(grpc.StatusCode.INTERNAL, text)


def _shortened(message: str) -> str:
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    half = MAX_MESSAGE_CHARACTERS // 2 - 4
    return f"{message[:half]} [...] {message[-half:]}"
