"""Child processes that never outlive their caller."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]


def tool_command(module: str) -> list[str]:
    """The command of one of our tools under this interpreter, installed or not."""
    return [sys.executable, "-c", f"import sys; from {module} import main; sys.exit(main())"]


def run_to_end(command: Sequence[str], output: IO[str] | None = None) -> int:
    """Run a command, its output into `output` if given; returns its exit code.

    Whatever interrupts the wait is passed on to the command first, so that it can clean up.
    """
    process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
