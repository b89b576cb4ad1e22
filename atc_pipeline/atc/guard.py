"""Run as a program: runs a command and ends it, and all it started, when its own input ends.

The parent holds the other end of the input. However the parent dies, the kernel closes that end,
so no compiler outlives a build. The command's processes share the guard's process group, which
the parent makes. Exits with the command's code, 128 plus the number for a signal.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    """Run the command that the arguments are."""
    threading.Thread(target=_end_group_with_input, daemon=True).start()
    try:
        code = subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL)
    except OSError as error:
        sys.stderr.write(f"cannot run {sys.argv[1]}: {error}\n")
        # As a shell answers for a command that cannot be run.
        return 126
    return 128 - code if code < 0 else code


def _end_group_with_input() -> None:
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
