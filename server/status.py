"""What an error class means outside: gRPC code, HTTP status, exit code.

The only place that knows. A class that has no row of its own has its nearest base's.
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from omruntime import errors


@dataclass(frozen=True, slots=True)
class Status:
    """How one error class looks from outside.

    Attributes:
        grpc_code: For RPCs.
        http_status: For HTTP.
        exit_code: Of a command that ends by it.
    """

    grpc_code: grpc.StatusCode
    http_status: int
    exit_code: int = 1


_CODE = grpc.StatusCode

_BY_CLASS: dict[type[BaseException], Status] = {
    errors.OmError: Status(_CODE.INTERNAL, 500),
    errors.ConfigError: Status(_CODE.INTERNAL, 500, exit_code=2),
    errors.BundleError: Status(_CODE.INTERNAL, 500, exit_code=2),
    errors.ExportError: Status(_CODE.INTERNAL, 500, exit_code=3),
    errors.AtcError: Status(_CODE.INTERNAL, 500, exit_code=4),
    errors.RequestError: Status(_CODE.INVALID_ARGUMENT, 400, exit_code=2),
    errors.PromptTooLongError: Status(_CODE.INVALID_ARGUMENT, 400, exit_code=2),
    errors.UnknownModelError: Status(_CODE.NOT_FOUND, 404),
    errors.UnknownRequestError: Status(_CODE.NOT_FOUND, 404),
    errors.DuplicateRequestError: Status(_CODE.ALREADY_EXISTS, 409),
    errors.PreconditionError: Status(_CODE.FAILED_PRECONDITION, 400),
    errors.NotBuiltInError: Status(_CODE.UNIMPLEMENTED, 501),
    errors.UnauthenticatedError: Status(_CODE.UNAUTHENTICATED, 401),
    errors.ForbiddenError: Status(_CODE.PERMISSION_DENIED, 403),
    errors.OverloadedError: Status(_CODE.RESOURCE_EXHAUSTED, 429),
    errors.NotReadyError: Status(_CODE.UNAVAILABLE, 503),
    errors.ShuttingDownError: Status(_CODE.UNAVAILABLE, 503),
    errors.DeviceError: Status(_CODE.INTERNAL, 500),
}

_UNEXPECTED = Status(_CODE.INTERNAL, 500)


def status_of(error: BaseException) -> Status:
    """The outside look of an error; anything that is no `OmError` is an internal error."""
    for cls in type(error).__mro__:
        if cls in _BY_CLASS:
            return _BY_CLASS[cls]
    return _UNEXPECTED


def retry_after_of(error: BaseException) -> float | None:
    """Seconds after which the same request may pass; None when nobody can tell."""
    if isinstance(error, errors.OverloadedError):
        return error.retry_after_s
    return None


def exit_code_of(error: BaseException) -> int:
    """The exit code of a command that ends by an error.

    A failed call counts as wrong input (2) when the server said INVALID_ARGUMENT.
    """
    if isinstance(error, errors.CallError):
        return 2 if error.code == _CODE.INVALID_ARGUMENT.name else 1
    return status_of(error).exit_code
