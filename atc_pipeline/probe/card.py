"""Card: an acl session of the fewest calls that a probe needs, each status checked.

Not the device of `omruntime`: that one keeps memory and programs alive over millions of steps,
this one runs a program once and lets go. For the thread that opened it.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from atc_pipeline.probe.acl_calls import Acl
from omruntime.errors import DeviceError

# Source: hicann/runtime include/external/acl/acl_rt.h.
HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3
_HUGE_FIRST = 0
DDR = 0


class Card:
    """One device of one process, from `acl.init` to `acl.finalize`."""

    def __init__(self, acl: Acl, device_id: int) -> None:
        """Open the device.

        Raises:
            DeviceError: A call failed.
        """
        self.acl = acl
        self._exits = ExitStack()
        with self._exits:
            self.check("init", acl.init())
            self._exits.callback(acl.finalize)
            self.check("rt.set_device", acl.rt.set_device(device_id))
            self._exits.callback(acl.rt.reset_device, device_id)
            self.stream, status = acl.rt.create_stream()
            self.check("rt.create_stream", status)
            self._exits.callback(acl.rt.destroy_stream, self.stream)
            # All is open: from here on, `close` ends it.
            self._exits = self._exits.pop_all()

    def close(self) -> None:
        """Give everything back, in the order that the vendor's manual asks for."""
        self._exits.close()

    def __enter__(self) -> Card:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def check(self, call: str, status: int) -> None:
        """Turn a status into an error.

        Raises:
            DeviceError: It is not 0; the message carries the driver's text.
        """
        if status != 0:
            text = self.acl.get_recent_err_msg() or "no text"
            raise DeviceError(f"acl.{call} gave {status}: {' '.join(text.split())[:400]}")

    def free_bytes(self) -> int:
        """Device memory that nobody has taken."""
        free, _, status = self.acl.rt.get_mem_info(DDR)
        self.check("rt.get_mem_info", status)
        return free


class Memory:
    """One device buffer; free it with `free`, after the stream was synchronized."""

    def __init__(self, card: Card, nbytes: int) -> None:
        """Reserve it; the content is undefined.

        Raises:
            DeviceError: There is not enough memory.
        """
        self._card = card
        self.nbytes = nbytes
        self.address, status = card.acl.rt.malloc(nbytes, _HUGE_FIRST)
        card.check("rt.malloc", status)

    def write(self, data: bytes, offset: int = 0) -> None:
        """Copy from the host; returns when it is done."""
        rt, util = self._card.acl.rt, self._card.acl.util
        room = self.nbytes - offset
        status = rt.memcpy(
            self.address + offset, room, util.bytes_to_ptr(data), len(data), HOST_TO_DEVICE
        )
        self._card.check("rt.memcpy", status)

    def read(self, nbytes: int, offset: int = 0) -> bytes:
        """Copy to the host; the stream must have been synchronized."""
        rt, card = self._card.acl.rt, self._card
        host, status = rt.malloc_host(nbytes)
        card.check("rt.malloc_host", status)
        try:
            source = self.address + offset
            card.check("rt.memcpy", rt.memcpy(host, nbytes, source, nbytes, DEVICE_TO_HOST))
            return card.acl.util.ptr_to_bytes(host, nbytes)
        finally:
            rt.free_host(host)

    def free(self) -> None:
        """Give it back."""
        self._card.acl.rt.free(self.address)


def load_file(card: Card, om: Path) -> int:
    """Load an OM with its own weights; returns the model id."""
    model_id, status = card.acl.mdl.load_from_file(str(om))
    card.check("mdl.load_from_file", status)
    return model_id
