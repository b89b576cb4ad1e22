from __future__ import annotations

import inspect

import pytest

from omruntime import errors
from server.status import exit_code_of, status_of

# class: gRPC, HTTP, exit; the table of the README.
TABLE = {
    errors.ConfigError: ("INTERNAL", 500, 2),
    errors.BundleError: ("INTERNAL", 500, 2),
    errors.ExportError: ("INTERNAL", 500, 3),
    errors.UnprovenModelError: ("INTERNAL", 500, 3),
    errors.ParityError: ("INTERNAL", 500, 3),
    errors.QualityError: ("INTERNAL", 500, 3),
    errors.AtcError: ("INTERNAL", 500, 4),
    errors.RequestError: ("INVALID_ARGUMENT", 400, 2),
    errors.FieldError: ("INVALID_ARGUMENT", 400, 2),
    errors.PromptTooLongError: ("INVALID_ARGUMENT", 400, 2),
    errors.UnknownModelError: ("NOT_FOUND", 404, 1),
    errors.UnknownRequestError: ("NOT_FOUND", 404, 1),
    errors.DuplicateRequestError: ("ALREADY_EXISTS", 409, 1),
    errors.PreconditionError: ("FAILED_PRECONDITION", 400, 1),
    errors.NotBuiltInError: ("UNIMPLEMENTED", 501, 1),
    errors.UnauthenticatedError: ("UNAUTHENTICATED", 401, 1),
    errors.ForbiddenError: ("PERMISSION_DENIED", 403, 1),
    errors.OverloadedError: ("RESOURCE_EXHAUSTED", 429, 1),
    errors.RateLimitedError: ("RESOURCE_EXHAUSTED", 429, 1),
    errors.NotReadyError: ("UNAVAILABLE", 503, 1),
    errors.ShuttingDownError: ("UNAVAILABLE", 503, 1),
    errors.DeviceError: ("INTERNAL", 500, 1),
    errors.StillRunningError: ("INTERNAL", 500, 1),
    errors.OutOfDeviceMemoryError: ("INTERNAL", 500, 1),
}


@pytest.mark.parametrize("cls", TABLE, ids=lambda cls: cls.__name__)
def test_table(cls: type[errors.OmError]) -> None:
    status = status_of(errors.FieldError("n", "m") if cls is errors.FieldError else cls("m"))
    assert (status.grpc_code.name, status.http_status, status.exit_code) == TABLE[cls]


def test_every_class_has_a_row() -> None:
    classes = {c for _, c in inspect.getmembers(errors, inspect.isclass)}
    assert classes - TABLE.keys() == {errors.OmError, errors.CallError}


def test_anything_else_is_internal() -> None:
    assert status_of(KeyError("x")).grpc_code.name == "INTERNAL"


def test_exit_codes_of_failed_calls() -> None:
    assert exit_code_of(errors.CallError("INVALID_ARGUMENT", "m")) == 2
    assert exit_code_of(errors.CallError("UNAVAILABLE", "m")) == 1
