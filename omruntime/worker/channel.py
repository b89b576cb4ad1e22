"""Channel: messages over a socket pair, each with its length before it.

Owns the bytes. They are pickles: both ends are this program, started by itself over a socket pair
without a name that nobody else can reach; nothing that comes from a client is ever unpickled.
"""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from contextlib import suppress

from omruntime.worker.messages import FromWorker, ToWorker

_LENGTH = struct.Struct("!I")
_BUFFER_BYTES = 1 << 16


class Channel:
    """One end; any thread may send, one may receive."""

    def __init__(self, end: socket.socket) -> None:
        """Take over a connected socket."""
        self._socket = end
        self._reader = end.makefile("rb", buffering=_BUFFER_BYTES)
        self._sending = threading.Lock()

    def send(self, message: ToWorker | FromWorker) -> None:
        """Send one message; waits while the other end is behind.

        Raises:
            OSError: The other end is gone.
        """
        payload = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._sending:
            self._socket.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self) -> ToWorker | FromWorker | None:
        """The next message; None when the other end is gone, also in the middle of a message."""
        try:
            head = self._reader.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                return None
            (length,) = _LENGTH.unpack(head)
            payload = self._reader.read(length)
        except OSError:  # reset: the other end died with unread messages
            return None
        if len(payload) < length:
            return None
        message: ToWorker | FromWorker = pickle.loads(payload)  # noqa: S301 - see above
        return message

    def end(self) -> None:
        """End both directions for whoever waits in them; from any thread.

        `receive` gives out what has arrived, then None; `send` raises.
        """
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the socket back; not while another thread receives."""
        with suppress(OSError):
            self._reader.close()
        self._socket.close()
