"""AclLibrary: acl's process-wide initialization, counted over the open devices."""

from __future__ import annotations

import threading

from omruntime.device.ascend.acl_constants import REPEAT_INITIALIZE
from omruntime.device.ascend.acl_module import AclModule
from omruntime.device.ascend.driver import Driver


class AclLibrary:
    """One acl module; initialized while any device is open.

    `acl.finalize` ends everything in the process, however often `acl.init` was called. So it is
    called by the last device alone, and never where somebody else (such as torch-npu) called
    `acl.init` first.

    Source: hicann/runtime src/acl/aclrt_impl/acl.cpp (aclInitImpl, aclFinalizeImpl).
    """

    def __init__(self, acl: AclModule) -> None:
        self.acl = acl
        self._lock = threading.Lock()
        self._num_users = 0
        self._is_ours = False

    def acquire(self) -> None:
        """Initialize acl if nobody did.

        Raises:
            DeviceError: The driver refused.
        """
        with self._lock:
            if self._num_users == 0:
                code = self.acl.init()
                self._is_ours = code != REPEAT_INITIALIZE
                if self._is_ours:
                    Driver(self.acl, "acl").check("acl.init", code)
            self._num_users += 1

    def release(self) -> None:
        """Give one `acquire` back; the last one ends acl.

        Raises:
            DeviceError: The driver refused.
        """
        with self._lock:
            self._num_users -= 1
            if self._num_users == 0 and self._is_ours:
                Driver(self.acl, "acl").check("acl.finalize", self.acl.finalize())
