"""Every exception of the project.

Owns the classes alone. What a class means on the wire (gRPC code, HTTP status, exit code)
stands in `server/status.py`.

    OmError
    ├── ConfigError                    a flag, variable or setting is wrong
    ├── BundleError                    the bundle is damaged, incomplete or made for something else
    ├── ExportError                    a checkpoint cannot be exported as it is
    │   ├── UnprovenModelError         outside the architectures that are proven
    │   ├── ParityError                the graph's numbers differ from the checkpoint's
    │   └── QualityError               a weight format costs the checkpoint too much
    ├── AtcError                       the ATC compiler failed
    ├── RequestError                   the caller's fault
    │   ├── FieldError                 a field of the request, by its name
    │   ├── PromptTooLongError
    │   ├── UnknownModelError
    │   ├── UnknownRequestError
    │   ├── DuplicateRequestError
    │   ├── PreconditionError          the bundle lacks what the request needs
    │   ├── NotBuiltInError            a feature this build does not have
    │   ├── UnauthenticatedError       no API key, or one that is not known
    │   └── ForbiddenError             the key does not allow it
    ├── OverloadedError                a queue limit is reached; retry later
    │   └── RateLimitedError           a limit of the caller's key is reached
    ├── NotReadyError                  still loading; retry soon
    ├── ShuttingDownError              draining; retry elsewhere
    ├── CallError                      a client's call to a server failed
    └── DeviceError                    a driver call failed
        ├── StillRunningError          a wait was given up, the work goes on
        └── OutOfDeviceMemoryError
"""

from __future__ import annotations

from typing import Self


class OmError(Exception):
    """Base of all errors that omserve raises on purpose."""


class ConfigError(OmError):
    """A flag, environment variable or setting has a wrong value."""


class BundleError(OmError):
    """A bundle is damaged, incomplete, of another version or made for another device."""


class ExportError(OmError):
    """A checkpoint cannot be exported; nothing was written."""


class UnprovenModelError(ExportError):
    """The checkpoint's architecture, or a setting of it, is not among those proven equal."""


class ParityError(ExportError):
    """The exported graph does not reproduce the checkpoint within the stated tolerance."""


class QualityError(ExportError):
    """A weight format changes the checkpoint's answers more than its limits allow."""


class AtcError(OmError):
    """The ATC compiler refused its command line or failed."""


class RequestError(OmError):
    """The request is wrong and will be wrong again: a bad value in a named field.

    Attributes:
        param: The field's name, where one alone is to blame.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class FieldError(RequestError):
    """A field of a request is wrong, or asks for what is not built in."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message, param)


class PromptTooLongError(RequestError):
    """The prompt, or prompt plus answer, passes the model's or the server's limit."""


class UnknownModelError(RequestError):
    """The request names a model that this server does not serve."""


class UnknownRequestError(RequestError):
    """No live request has the given id."""


class DuplicateRequestError(RequestError):
    """A live request already has the given id."""


class PreconditionError(RequestError):
    """The bundle lacks what the request needs, such as a chat template."""


class NotBuiltInError(RequestError):
    """The request asks for a feature that this build does not have."""


class UnauthenticatedError(RequestError):
    """The caller gave no API key, or one that the server does not know."""


class ForbiddenError(RequestError):
    """The caller's key does not allow what it asks for, such as another tenant's turn."""


class OverloadedError(OmError):
    """A limit is reached; the same request may pass later.

    Attributes:
        retry_after_s: Seconds after which a place is expected; None when waiting does not help
            or nobody can tell.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    @classmethod
    def until(cls, message: str, retry_after_s: float) -> Self:
        """The error of a wait that is known; the message says it, too."""
        return cls(f"{message}; retry after {max(retry_after_s, 0.1):.1f} s", retry_after_s)


class RateLimitedError(OverloadedError):
    """A limit of the caller's own key is reached, however idle the server is."""


class NotReadyError(OmError):
    """The server still loads or warms up; the same request will pass later."""


class ShuttingDownError(OmError):
    """The server drains and takes no new requests."""


class CallError(OmError):
    """A call to a server failed.

    Attributes:
        code: The gRPC status by name, such as `INVALID_ARGUMENT`.
        retry_after_s: Seconds that the server asks to wait before another try; None when it
            does not say.
        is_unsent: Whether there was no connection, so that no server has the call.
    """

    def __init__(
        self,
        code: str,
        message: str,
        retry_after_s: float | None = None,
        is_unsent: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s
        self.is_unsent = is_unsent


class DeviceError(OmError):
    """A device call failed; the message carries the call, its code and the driver's text."""


class StillRunningError(DeviceError):
    """A wait for the device ended by its time limit; the work goes on."""


class OutOfDeviceMemoryError(DeviceError):
    """The device has too little memory; nothing was reserved."""
