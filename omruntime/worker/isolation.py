"""What makes a process end with its parent and not by the parent's signals; Linux only.

Source: prctl(2), PR_SET_PDEATHSIG (cleared by fork, kept by execve of an ordinary program; sent
when the thread that created the process ends); signal(7).
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    Args:
        parent_pid: The parent's id; a process that finds another one was left alone already,
            and ends here.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        os._exit(1)


def ignore_stop_signals() -> None:
    """Leave to the parent what may be sent to every process of a service or of a terminal.

    `systemd` sends SIGTERM to all processes of a unit; answers under way need this one.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
