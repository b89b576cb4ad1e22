"""WorkerProcess: one device process as its parent sees it: started, told, read, ended.

Owns the child and the two threads beside it. What its messages mean is `worker_engine.py`'s
business.
"""

from __future__ import annotations

import logging
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

from omruntime.worker.channel import Channel
from omruntime.worker.messages import FromWorker, Start, Stop, ToWorker

logger = logging.getLogger(__name__)

# A new interpreter rather than a fork: a fork copies the locks of threads that it does not copy,
# and neither grpc nor CANN survives that. The path is the parent's, so that both run one program.
_BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; from omruntime.worker.process import main; "
    "main(int(sys.argv[1]), int(sys.argv[2]))"
)
# What a process gets to print its stacks after SIGABRT.
ABORT_S = 2.0


class WorkerProcess:
    """One running device process.

    Start it in a thread that outlives it: the kernel kills it when that thread ends.
    """

    def __init__(self, start: Start) -> None:
        """Start the process and have it load.

        Raises:
            OSError: The machine refused another process.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _popen(theirs)
            except BaseException:
                ours.close()
                raise
        self._channel = Channel(ours)
        self._outbox: queue.SimpleQueue[ToWorker | None] = queue.SimpleQueue()
        self._exited = threading.Event()
        self._threads = (
            threading.Thread(target=self._send_all, name="worker-send", daemon=True),
            threading.Thread(target=self._wait, name="worker-wait", daemon=True),
        )
        for thread in self._threads:
            thread.start()
        self.send(start)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, message: ToWorker) -> None:
        """Queue a message; never waits, and a process that has ended does not get it."""
        self._outbox.put(message)

    def messages(self) -> Iterator[FromWorker]:
        """What it says, until it has ended; for one thread."""
        while (message := self._channel.receive()) is not None:
            assert isinstance(message, FromWorker)
            yield message

    def stop(self, grace_s: float) -> None:
        """Have it end by itself, and kill it when it does not."""
        self.send(Stop())
        if not self._exited.wait(grace_s):
            logger.warning("the device process does not stop, it is killed pid=%d", self.pid)
            self.kill()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()

    def abort(self) -> None:
        """End it, and have it print where each of its threads stands."""
        with suppress(OSError):  # it has ended meanwhile
            # The stacks are what is wanted, not a file of the size of its memory.
            resource.prlimit(self.pid, resource.RLIMIT_CORE, (0, 0))
        self._process.send_signal(signal.SIGABRT)
        # A stopped process gets the signal only when it goes on.
        self._process.send_signal(signal.SIGCONT)
        if not self._exited.wait(ABORT_S):
            self.kill()

    def close(self) -> str:
        """Wait for the end of a process that said its last, and say how it came.

        Waits as long as the kernel needs: before that the device is not free for another one.
        """
        self._exited.wait()
        self._outbox.put(None)
        for thread in self._threads:
            thread.join()
        self._channel.close()
        return describe_exit(self._process.returncode)

    def _send_all(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                self._channel.send(message)
            except OSError:
                return  # it has ended; `messages` says so

    def _wait(self) -> None:
        self._process.wait()
        # Not left to the end of the socket: a helper that a library forked may still hold it.
        self._channel.end()
        self._exited.set()


def _popen(theirs: socket.socket) -> subprocess.Popen[bytes]:
    fd = theirs.fileno()
    return subprocess.Popen(
        [sys.executable, "-c", _BOOT, str(fd), str(os.getpid()), *sys.path],
        stdin=subprocess.DEVNULL,
        pass_fds=(fd,),
        # A terminal's Ctrl-C goes to the foreground group, which it leaves.
        start_new_session=True,
    )


def describe_exit(code: int) -> str:
    """How a process ended, for a sentence about it.

    Args:
        code: As `subprocess` gives it: negative is the number of a signal.
    """
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:  # a real-time signal
        name = ""
    hint = ""
    if -code == signal.SIGKILL:
        hint = "; if nobody did, the kernel may have, for want of memory: see its log"
    return f"was killed by signal {-code}{name}{hint}"
