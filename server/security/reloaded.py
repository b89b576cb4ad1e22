"""Reloaded: what some files hold, read again when they change.

Owns when to read and what to do with a damaged file; what the files mean is the reader's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from omruntime.errors import ConfigError

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A file that is being written gives this many chances to be found whole.
_MAX_READS = 3

_Version = tuple[tuple[int, int, int] | None, ...]


class Reloaded(Generic[T]):
    """The last good content of files; any thread may ask."""

    def __init__(self, what: str, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """Read the files for the first time.

        Args:
            what: What they are, for the log.
            paths: Those that `read` reads.
            read: Gives the content, or raises ConfigError.

        Raises:
            ConfigError: They are missing or damaged.
        """
        self._what = what
        self._paths = tuple(paths)
        self._read = read
        self._lock = threading.Lock()
        self._version = self._version_now()
        self._content = read()

    def current(self) -> T:
        """The content; after a change the new one, or the old one when the new is damaged.

        Looks at the files' inode, time and size each time, which takes microseconds; a replaced
        file is therefore seen by the first use after it, without a signal or a timer.
        """
        with self._lock:
            version = self._version_now()
            if version != self._version:
                self._read_again(version)
            return self._content

    def _read_again(self, version: _Version) -> None:
        for _ in range(_MAX_READS):
            content: T | ConfigError
            try:
                content = self._read()
            except ConfigError as error:
                content = error
            # Files that changed while they were read may be halves of two versions.
            before, version = version, self._version_now()
            if before == version:
                self._take_over(version, content)
                return

    def _take_over(self, version: _Version, content: T | ConfigError) -> None:
        self._version = version
        if isinstance(content, ConfigError):
            logger.error("%s changed and are damaged, the old ones stay: %s", self._what, content)
            return
        self._content = content
        logger.info("%s were read again", self._what)

    def _version_now(self) -> _Version:
        return tuple(_version_of(path) for path in self._paths)


def _version_of(path: Path) -> tuple[int, int, int] | None:
    """What changes with a file's content; None when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
