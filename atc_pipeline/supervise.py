"""A build in a child process, so that it can end at any moment and leave nothing behind.

The parent only waits. Native code of the export libraries may hold up a signal handler for
minutes or be killed for lack of memory; the parent ends the child at once, tells what
happened, and its `with` blocks clean up.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from omruntime.errors import ExportError

STOP_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1


class StopRequested(BaseException):
    """A stop signal arrived; the process should clean up and exit with `exit_code`."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.exit_code = 128 + signum


@contextmanager
def stop_signals() -> Iterator[None]:
    """Turn the first stop signal into `StopRequested`; later ones do not disturb the clean-up.

    Only for code that waits and cleans up, on the main thread.
    """

    def stop(signum: int, frame: FrameType | None) -> None:
        for other in STOP_SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise StopRequested(signum)

    previous = {signum: signal.signal(signum, stop) for signum in STOP_SIGNALS}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def run_in_child(work: Callable[[], int]) -> int:
    """Run `work` in a forked child and return its exit code; the caller has no threads.

    Raises:
        ExportError: A signal ended the child, as the kernel does when memory runs out.
        StopRequested: Under `stop_signals`, after the child is gone.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    # Blocked until the child's id is known: a signal in between would leave it running.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    child = os.fork()
    if child == 0:
        _be_child(work)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        # Its id stays its own until it is reaped, whenever a signal comes.
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        raise ExportError(_death_note(-code))
    return code


def _be_child(work: Callable[[], int]) -> None:
    """Run `work` and end the process with its code, whatever happens."""
    code = 1
    try:
        for signum in STOP_SIGNALS:
            signal.signal(signum, signal.SIG_DFL)
        _die_with_parent()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        code = work()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _die_with_parent() -> None:
    """Ask the kernel to end this process when its parent is killed; Linux only."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _death_note(signum: int) -> str:
    name = signal.Signals(signum).name
    if signum in (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS):
        return (
            f"the build was ended by {name}, most likely for lack of memory; give it more, "
            f"or look into the kernel's log if there was enough"
        )
    return f"the build was ended by {name}; nothing was written"
