"""BuildingFolder: a bundle grows beside its final place and gets there in one rename.

Owns the output folder's name: who may take it, how an older bundle under it is replaced, and
what a build that died has left. What lies in the folder is `bundle.py`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from omruntime.errors import ConfigError
from omruntime.manifest import MANIFEST_NAME


@dataclass(frozen=True, slots=True)
class FolderKind:
    """What a folder that a build wrote is known by.

    Attributes:
        word: For messages.
        index_name: Of the JSON file that every one has.
        index_keys: What stands in it, in every version.
        entries: All that may lie in it.
    """

    word: str
    index_name: str
    index_keys: frozenset[str]
    entries: frozenset[str]


BUNDLE = FolderKind(
    word="bundle",
    index_name=MANIFEST_NAME,
    index_keys=frozenset({"format_version", "graph_contract"}),
    entries=frozenset({MANIFEST_NAME, "programs", "weights", "tokenizer", "reports"}),
)
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# A bundle in mid-exchange; when that build died, the next one puts it back.
_ASIDE_SUFFIX = ".old"


class BuildingFolder:
    """The folder of a running build; made by `building_folder`."""

    def __init__(self, path: Path, output: Path) -> None:
        self.path = path
        self.output = output

    def publish(self) -> None:
        """Put the folder under the output name, at once and durably.

        An older bundle there moves to the building name, which `building_folder` removes. A
        server that runs from it keeps its open and mapped files.
        """
        _sync_tree(self.path)
        if self.output.exists():
            _exchange(self.path, self.output)
        else:
            self.path.rename(self.output)
        _sync(self.output.parent)


@contextmanager
def building_folder(output: Path, kind: FolderKind = BUNDLE) -> Iterator[BuildingFolder]:
    """Make an empty folder beside `output`; it is gone afterwards, published or not.

    Folders that dead builds of the same output left are removed first.

    Raises:
        ConfigError: `output` is something that a folder of this kind must not replace, or
            nothing can be written beside it.
    """
    output = output.resolve()
    try:
        require_replaceable(output, kind)
        path = output.with_name(f".{output.name}.building-{os.getpid()}")
        output.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(output)
        path.mkdir()
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error}; choose another output") from error
    try:
        lock = os.open(path, os.O_RDONLY)
        try:
            # Held by every process of this build, so a lock that can be had marks a dead one.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield BuildingFolder(path, output)
        finally:
            os.close(lock)
    finally:
        # What cannot be removed now is stale and goes with the next build.
        shutil.rmtree(path, ignore_errors=True)


def require_replaceable(output: Path, kind: FolderKind = BUNDLE) -> None:
    """Refuse an output that is neither absent, nor an empty folder, nor of the same kind.

    Raises:
        ConfigError: It is a file, a mount point, or holds what none of the kind has.
    """
    if not output.name:
        raise ConfigError(f"output is {str(output)!r}, wanted the name of a new folder")
    if not output.exists():
        return
    if not output.is_dir():
        raise ConfigError(f"output {output} is a file, wanted a folder or a new name")
    if output.is_mount():
        raise ConfigError(
            f"output {output} is a mount point, which cannot be replaced by a rename; "
            f"name a folder below it"
        )
    foreign = sorted(p.name for p in output.iterdir() if p.name not in kind.entries)
    if foreign or (any(output.iterdir()) and not _is_of_kind(output, kind)):
        what = f"holds {', '.join(foreign[:5])}" if foreign else f"has no valid {kind.index_name}"
        raise ConfigError(
            f"output {output} is a folder but no {kind.word}: it {what}; "
            f"name another folder, or empty this one"
        )


def _is_of_kind(folder: Path, kind: FolderKind) -> bool:
    """Whether the index is one of ours, of whatever version."""
    try:
        plain = json.loads((folder / kind.index_name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(plain, dict) and kind.index_keys <= plain.keys()


def _remove_stale(output: Path) -> None:
    prefix = f".{output.name}.building-"
    for path in sorted(output.parent.iterdir()):
        if not path.name.startswith(prefix) or not path.is_dir() or is_locked(path):
            continue
        if path.suffix == _ASIDE_SUFFIX and not output.exists():
            path.rename(output)
        else:
            shutil.rmtree(path)


def is_locked(path: Path) -> bool:
    """Whether a running process holds the folder's lock."""
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _exchange(first: Path, second: Path) -> None:
    """Swap two folders' names: at once where the kernel can, else with three renames."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        names = (_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second))
        if libc.renameat2(*names, _RENAME_EXCHANGE) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise OSError(code, os.strerror(code), str(second))
    exchange_by_renames(first, second)


def exchange_by_renames(first: Path, second: Path) -> None:
    """Swap two folders' names; `second` is absent for an instant.

    Raises:
        OSError: A rename failed; both have their old names again.
    """
    aside = first.with_name(first.name + _ASIDE_SUFFIX)
    second.rename(aside)
    try:
        first.rename(second)
    except OSError:
        aside.rename(second)
        raise
    aside.rename(first)


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
