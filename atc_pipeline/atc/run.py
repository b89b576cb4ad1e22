"""RunningAtc: one `atc` process with its log file, its time limit and its end.

Owns processes; which of them run at the same time is `compile.py`, what a failure means
`failure.py`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from atc_pipeline.atc.find import AtcTool
from omruntime.errors import AtcError

_GUARD = Path(__file__).with_name("guard.py")
_TAIL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class AtcResult:
    """How a run ended.

    Attributes:
        exit_code: 128 plus the number for a signal.
        timed_out: Whether the time limit ended it.
        output_tail: The last part of what it printed, up to 64 KiB.
    """

    exit_code: int
    timed_out: bool
    output_tail: str
    seconds: float


class RunningAtc:
    """A started run; `close` it, whatever happens. For one thread."""

    def __init__(
        self, tool: AtcTool, argv: tuple[str, ...], folder: Path, timeout_s: float
    ) -> None:
        """Start `atc` in `folder`, its output in `atc.log` and its detailed logs in `plog/`.

        Source: CANN log reference, ASCEND_PROCESS_LOG_PATH.
        """
        self.log_path = folder / "atc.log"
        self._started_s = time.monotonic()
        self.timeout_s = timeout_s
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                # By path and isolated: the guard needs no package, and `atc` none of ours.
                [sys.executable, "-I", "-S", str(_GUARD), *tool.command, *argv],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(os.environ, tool, folder),
                # Its own group, so that it ends as a whole, and Ctrl-C is the parent's to handle.
                process_group=0,
            )
        try:
            self._exit = os.pidfd_open(self._process.pid)
        except OSError as error:
            self._end_group()
            raise AtcError(f"cannot watch atc: {error}; Linux 5.3 or later is needed") from error

    def fileno(self) -> int:
        """Readable when the process has ended, for `select`."""
        return self._exit

    @property
    def seconds(self) -> float:
        """How long it runs."""
        return time.monotonic() - self._started_s

    @property
    def seconds_left(self) -> float:
        """Until the time limit; 0 when it has passed."""
        return max(0.0, self.timeout_s - self.seconds)

    def has_ended(self) -> bool:
        """Whether the process has ended by itself."""
        return bool(select.select([self._exit], [], [], 0)[0])

    def wait(self) -> AtcResult:
        """Wait for the end of the run or of its time, and say how it went."""
        select.select([self._exit], [], [], self.seconds_left)
        return self.finish()

    def finish(self) -> AtcResult:
        """End what still runs and say how it went."""
        timed_out = not self.has_ended()
        code = self._end_group()
        exit_code = 128 - code if code < 0 else code
        return AtcResult(exit_code, timed_out, self.read_tail(), self.seconds)

    def read_tail(self) -> str:
        """The last part of the output so far."""
        with self.log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _TAIL_BYTES))
            return log.read().decode("utf-8", "replace")

    def close(self) -> None:
        """End the run, whatever its state."""
        self._end_group()
        os.close(self._exit)

    def _end_group(self) -> int:
        if self._process.returncode is None:
            # Before the wait: as long as the leader is not reaped, its number names this group.
            os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait()


def _environment(environ: Mapping[str, str], tool: AtcTool, folder: Path) -> dict[str, str]:
    """The caller's environment, with a place for detailed logs and what the tool needs."""
    found = dict(environ) | {"ASCEND_PROCESS_LOG_PATH": str(folder / "plog")}
    if tool.python_path:
        given = environ.get("PYTHONPATH")
        found["PYTHONPATH"] = os.pathsep.join(p for p in (given, tool.python_path) if p)
    return found
