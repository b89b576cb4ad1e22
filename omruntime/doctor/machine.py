"""Machine: all that the doctor may touch, passed in so that tests bring a machine of their own.

Reads are bounded and never raise: what cannot be read is remembered and reported by a check.
"""

from __future__ import annotations

import importlib.metadata
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Version files are a few hundred bytes; a wrong file may be anything.
_MAX_READ_BYTES = 64 * 1024
_COMMAND_TIMEOUT_S = 30.0
_LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "locked memory": resource.RLIMIT_MEMLOCK,
    "address space": resource.RLIMIT_AS,
}


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command printed, both streams; `code` is None when it could not be run at all."""

    code: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine as one process sees it.

    Attributes:
        root: What stands for `/`.
        gids: All groups of the process, the first one included.
        python: Of the interpreter that will serve.
        run: Runs a command without a shell and within a time limit.
        stat: As `os.stat`, over paths below `root`.
        package_version: Version of an installed Python package, None when absent.
        limits: Soft limits of the process by name; None is unlimited.
        unreadable: Filled by reads: path to reason.
    """

    root: Path
    environ: Mapping[str, str]
    uid: int
    gids: frozenset[int]
    python: tuple[int, int, int]
    run: Callable[[Sequence[str]], CommandOutput]
    stat: Callable[[Path], os.stat_result]
    package_version: Callable[[str], str | None]
    limits: Mapping[str, int | None]
    unreadable: dict[str, str] = field(default_factory=dict)

    def at(self, path: str) -> Path:
        """Where an absolute path of the machine lies."""
        return self.root / path.lstrip("/")

    def stat_of(self, path: str) -> os.stat_result | None:
        """None when there is no such file, or none that may be looked at."""
        try:
            return self.stat(self.at(path))
        except FileNotFoundError:
            return None
        # ValueError: a path with a zero byte, out of an environment variable.
        except (OSError, ValueError) as error:
            self._note(path, error)
            return None

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        return self.stat_of(path) is not None

    def read(self, path: str) -> str | None:
        """The first 64 KiB of a file as text, bytes that are not UTF-8 replaced.

        Returns:
            None when it is absent, or cannot be read, which `unreadable` then holds.
        """
        try:
            with self.at(path).open("rb") as file:
                return file.read(_MAX_READ_BYTES).decode("utf-8", errors="replace")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._note(path, error)
            return None

    def names_in(self, folder: str) -> tuple[str, ...]:
        """Names in a folder, sorted; none when it is absent or unreadable."""
        try:
            return tuple(sorted(entry.name for entry in os.scandir(self.at(folder))))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except (OSError, ValueError) as error:
            self._note(folder, error)
            return ()

    def _note(self, path: str, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) else None
        self.unreadable[path] = reason or str(error)


def this_machine() -> Machine:
    """The machine and process that the doctor runs in."""
    return Machine(
        root=Path("/"),
        environ=os.environ,
        uid=os.geteuid(),
        gids=frozenset({os.getegid(), *os.getgroups()}),
        python=sys.version_info[:3],
        run=run_command,
        stat=os.stat,
        package_version=installed_version,
        limits={name: _soft_limit(limit) for name, limit in _LIMITS.items()},
    )


def run_command(argv: Sequence[str]) -> CommandOutput:
    """Run a command without a shell, for at most 30 s; never raises for what the command does."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return CommandOutput(None, f"no answer within {_COMMAND_TIMEOUT_S:.0f} s")
    except (OSError, ValueError) as error:
        return CommandOutput(None, str(error))
    return CommandOutput(done.returncode, done.stdout.decode("utf-8", errors="replace"))


def installed_version(package: str) -> str | None:
    """Version of an installed Python package, without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _soft_limit(limit: int) -> int | None:
    soft, _ = resource.getrlimit(limit)
    return None if soft == resource.RLIM_INFINITY else soft
