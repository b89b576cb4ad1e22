"""Driver: the one place where a return code of acl becomes an exception."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib.resources import files

from omruntime.device.ascend.acl_constants import OUT_OF_MEMORY, SUCCESS, SYNC_TIMEOUT
from omruntime.device.ascend.acl_module import AclModule
from omruntime.errors import DeviceError, OutOfDeviceMemoryError, StillRunningError


class Driver:
    """The acl module of one device, and the check of its answers.

    Attributes:
        acl: The module itself.
        device_name: For messages, such as `ascend:0`.
    """

    def __init__(self, acl: AclModule, device_name: str) -> None:
        self.acl = acl
        self.device_name = device_name

    def check(self, call: str, code: int) -> None:
        """Raise unless a call succeeded.

        The driver's text belongs to the calling thread and is gone once it is read, so this
        runs right after the call and in its thread.

        Raises:
            OutOfDeviceMemoryError: The code says that device memory is short.
            StillRunningError: A wait ended by its time limit.
            DeviceError: Any other failure.

        Source: CANN runtime API reference, exception handling (aclGetRecentErrMsg).
        """
        if code == SUCCESS:
            return
        message = self._message(f"{call} returned {code} ({error_name(code)})")
        if code in OUT_OF_MEMORY:
            raise OutOfDeviceMemoryError(message)
        raise StillRunningError(message) if code in SYNC_TIMEOUT else DeviceError(message)

    def require(self, call: str, handle: int) -> int:
        """The handle of a call that answers 0 when it fails.

        Raises:
            DeviceError: It is 0.
        """
        if handle == 0:
            raise DeviceError(self._message(f"{call} returned no handle"))
        return handle

    def _message(self, what: str) -> str:
        text = self.acl.get_recent_err_msg()
        return f"{self.device_name}: {what}: {(text or 'the driver gives no text').strip()}"


def error_name(code: int) -> str:
    """The name of an acl error code."""
    return _error_names().get(str(code), "unknown code")


@functools.cache
def _error_names() -> Mapping[str, str]:
    """Source: hicann/runtime include/external/acl/error_codes; hicann/ge ge_error_codes.h."""
    text = (files(__package__) / "data" / "error_names.json").read_text(encoding="utf-8")
    names: dict[str, str] = json.loads(text)
    return names
