"""DeviceSession: a device, a context and a stream, from first to last call.

The context is the session's own; every entry makes it current, so that several devices may live
in one thread and a device may move to another thread.

Source: CANN runtime API reference, device management and context management (the current
context is a thread's; a stream belongs to the context it was created in).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from omruntime.device.ascend.acl_constants import SYNC_TIMEOUT
from omruntime.device.ascend.driver import Driver
from omruntime.device.ascend.library import AclLibrary
from omruntime.errors import DeviceError

logger = logging.getLogger(__name__)


class DeviceSession:
    """One open device with its context and its one stream.

    Attributes:
        stream: Everything is queued here, so that everything is ordered.
    """

    def __init__(
        self, library: AclLibrary, driver: Driver, device_id: int, timeout_ms: int | None = None
    ) -> None:
        """Open the device; the first one of a process takes seconds.

        Args:
            timeout_ms: Longest wait of `synchronize`; None waits for ever.

        Raises:
            DeviceError: The driver refused; nothing stays open.
        """
        self._library = library
        self._driver = driver
        self._acl = driver.acl
        self._device_id = device_id
        self._timeout_ms = timeout_ms
        self._undo: list[Callable[[], None]] = []
        self._context = self.stream = 0
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        check = self._driver.check
        self._library.acquire()
        self._undo.append(self._library.release)
        check("acl.rt.set_device", self._acl.rt.set_device(self._device_id))
        self._undo.append(self._reset_device)
        self._context, code = self._acl.rt.create_context(self._device_id)
        check("acl.rt.create_context", code)
        self._undo.append(self._destroy_context)
        self.stream, code = self._acl.rt.create_stream()
        check("acl.rt.create_stream", code)
        self._undo.append(self._destroy_stream)

    def enter(self) -> None:
        """Make the session's context the calling thread's current one.

        Raises:
            DeviceError: The driver refused.
        """
        self._driver.check("acl.rt.set_context", self._acl.rt.set_context(self._context))

    def synchronize(self) -> None:
        """Wait for the stream; other Python threads run meanwhile.

        Raises:
            DeviceError: Something queued failed, or the wait took too long.
        """
        if self._timeout_ms is None:
            code = self._acl.rt.synchronize_stream(self.stream)
            self._driver.check("acl.rt.synchronize_stream", code)
            return
        code = self._acl.rt.synchronize_stream_with_timeout(self.stream, self._timeout_ms)
        if code in SYNC_TIMEOUT:
            logger.error("%s: work is not done after %s ms", self._driver.device_name,
                         self._timeout_ms)  # fmt: skip
        self._driver.check("acl.rt.synchronize_stream_with_timeout", code)

    def close(self) -> None:
        """Undo everything in reverse order; a second call does nothing.

        Raises:
            DeviceError: A step failed; the others were done all the same.
        """
        steps, self._undo = self._undo[::-1], []
        run_all(steps)

    def _destroy_stream(self) -> None:
        self._driver.check("acl.rt.destroy_stream", self._acl.rt.destroy_stream(self.stream))

    def _destroy_context(self) -> None:
        self._driver.check("acl.rt.destroy_context", self._acl.rt.destroy_context(self._context))

    def _reset_device(self) -> None:
        self._driver.check("acl.rt.reset_device", self._acl.rt.reset_device(self._device_id))


def run_all(steps: Iterable[Callable[[], None]]) -> None:
    """Run every step of a teardown, whatever happens in the others.

    Raises:
        DeviceError: The first failure.
    """
    first: DeviceError | None = None
    for step in steps:
        try:
            step()
        except DeviceError as error:
            logger.warning("closing: %s", error)
            first = first or error
    if first is not None:
        raise first
