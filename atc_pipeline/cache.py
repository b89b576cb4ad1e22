"""CompileCache: what `atc` made before, on disk, so that equal input is compiled once.

Owns keys, entries and their end. An entry holds the OM and its external weights, with a hash of
each; it appears under its name at once, and it is checked whenever it is used.

    DIR/lock             held shared by readers and writers, alone by whoever removes entries
    DIR/tmp/...          entries in the making; what a removing process finds there is dead
    DIR/entries/KEY/     entry.json and the files it lists
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from atc_pipeline.atc.compile import find_products, om_name
from atc_pipeline.atc.jobs import CompileJob
from atc_pipeline.resources import mib
from omruntime.errors import ConfigError

# Raise it when the same key would have to stand for other files.
_KEY_VERSION = 1
_ENTRY_NAME = "entry.json"
# What a listing that cannot be used stands for: a file that no entry has.
_DAMAGED = {_ENTRY_NAME: ""}
_COPY_BYTES = 1 << 20
# A dozen builds of a 7B model in float16.
DEFAULT_MAX_BYTES = 200 << 30
CACHE_VARIABLE = "OMSERVE_CACHE_DIR"


@dataclass(frozen=True, slots=True)
class BuildIdentity:
    """What besides its command line decides the bytes that a run makes.

    Attributes:
        graph_sha256, weights_sha256: Of the ONNX file and of the file beside it.
        toolkit_version: Of CANN, or of the simulator.
    """

    graph_sha256: str
    weights_sha256: str
    toolkit_version: str
    is_simulated: bool


def cache_key(job: CompileJob, identity: BuildIdentity) -> str:
    """The name of an entry: a hash over everything that decides its bytes, and over no path."""
    flags = {name: value for name, value in job.options.flags().items() if name != "model"}
    facts = {
        "version": _KEY_VERSION,
        "graph": identity.graph_sha256,
        "weights": identity.weights_sha256,
        "flags": flags,
        "toolkit": identity.toolkit_version,
        "simulated": identity.is_simulated,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def default_cache_folder(environ: Mapping[str, str]) -> Path:
    """$OMSERVE_CACHE_DIR, else ~/.cache/omserve; the compile cache is `atc` below it.

    Raises:
        ConfigError: There is neither that variable nor a home.
    """
    named = environ.get(CACHE_VARIABLE)
    if named:
        return Path(named) / "atc"
    home = environ.get("HOME")
    if not home:
        raise ConfigError(f"no HOME for the compile cache: set {CACHE_VARIABLE}, or --no-cache")
    return Path(home) / ".cache" / "omserve" / "atc"


class NoCache:
    """Remembers nothing."""

    def try_fetch(self, job: CompileJob, folder: Path) -> bool:
        """There is never an entry."""
        return False

    def store(self, job: CompileJob, folder: Path) -> None:
        """The files stay where they are."""


class CompileCache:
    """The cache for one build; several processes may use one folder at a time."""

    def __init__(
        self,
        folder: Path,
        identity: BuildIdentity,
        note: Callable[[str], None],
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        """Make the folder if need be.

        Args:
            note: Told what a user may want to know, such as a damaged entry.
            max_bytes: Of all entries; the ones unused for longest make room.

        Raises:
            ConfigError: The folder cannot be made or written to.
        """
        self._entries = folder / "entries"
        self._temporary = folder / "tmp"
        self._lock_path = folder / "lock"
        self._identity = identity
        self._note = note
        self._max_bytes = max_bytes
        try:
            for path in (self._entries, self._temporary):
                path.mkdir(parents=True, exist_ok=True)
            self._lock_path.touch()
        except OSError as error:
            raise ConfigError(
                f"cannot use the compile cache {folder}: {error}; "
                f"name another --cache-dir, or give --no-cache"
            ) from error

    def try_fetch(self, job: CompileJob, folder: Path) -> bool:
        """Copy the job's earlier result into the empty `folder`; False when there is none.

        A damaged entry is removed and counts as none.
        """
        entry = self._entries / cache_key(job, self._identity)
        with self._locked(fcntl.LOCK_SH):
            listed = _read_listing(entry)
            if listed is None:
                return False
            if om_name(job) in listed and _copy_checked(entry, folder, listed):
                # The time of last use, which decides what makes room.
                os.utime(entry / _ENTRY_NAME)
                return True
        _empty(folder)
        self._note(f"{job.name}.om: the cache entry {entry.name} is damaged; compiling again")
        with self._locked(fcntl.LOCK_EX):
            _remove(entry)
        return False

    def store(self, job: CompileJob, folder: Path) -> None:
        """Remember what the job made; an entry that another build made meanwhile stays."""
        products = find_products(job, folder)
        size_bytes = sum((folder / name).stat().st_size for name in products)
        if size_bytes > self._max_bytes:
            self._note(f"{job.name}.om: {mib(size_bytes)} pass the cache's size and are not kept")
            return
        entry = self._entries / cache_key(job, self._identity)
        try:
            with self._locked(fcntl.LOCK_SH), self._temporary_folder() as growing:
                _write_entry(folder, growing, products)
                _rename_unless_there(growing, entry)
            self._make_room(keep=entry)
        except OSError as error:
            # The build itself has what it needs.
            self._note(f"{job.name}.om: not kept in the cache: {error}")

    def _make_room(self, keep: Path) -> None:
        with self._locked(fcntl.LOCK_EX):
            for path in self._temporary.iterdir():
                shutil.rmtree(path, ignore_errors=True)
            entries = sorted(self._entries.iterdir(), key=_last_used)
            sizes = {path: _size_bytes(path) for path in entries}
            total_bytes = sum(sizes.values())
            for path in entries:
                if total_bytes <= self._max_bytes:
                    break
                if path != keep:
                    _remove(path)
                    total_bytes -= sizes[path]

    @contextlib.contextmanager
    def _temporary_folder(self) -> Iterator[Path]:
        path = Path(tempfile.mkdtemp(dir=self._temporary))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        with self._lock_path.open("rb") as lock:
            fcntl.flock(lock, kind)
            yield


def _rename_unless_there(growing: Path, entry: Path) -> None:
    """Give the entry its name; one that another build put there meanwhile is as good."""
    try:
        growing.rename(entry)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


def _write_entry(folder: Path, growing: Path, products: tuple[str, ...]) -> None:
    listed = {name: _copy_hashed(folder / name, growing / name) for name in products}
    text = json.dumps(listed, indent=2, sort_keys=True) + "\n"
    (growing / _ENTRY_NAME).write_text(text, encoding="utf-8")


def _read_listing(entry: Path) -> dict[str, str] | None:
    """File names to hashes; an unreadable listing gives names that do not exist."""
    try:
        listed = json.loads((entry / _ENTRY_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _DAMAGED if entry.exists() else None
    except (OSError, ValueError, RecursionError):
        return _DAMAGED
    if not isinstance(listed, dict) or not listed or not all(map(_is_inside, listed)):
        return _DAMAGED
    return {str(name): str(digest) for name, digest in listed.items()}


def _is_inside(name: str) -> bool:
    return ".." not in name and name[:1] != "/" and "\0" not in name


def _copy_checked(entry: Path, folder: Path, listed: Mapping[str, str]) -> bool:
    """Copy an entry's files; False when one is missing or has another hash."""
    try:
        return all(
            _copy_hashed(entry / name, folder / name) == digest for name, digest in listed.items()
        )
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False


def _copy_hashed(source: Path, target: Path) -> str:
    """Copy a file; returns the sha256 of what was read."""
    target.parent.mkdir(exist_ok=True)
    digest = hashlib.sha256()
    with source.open("rb") as reading, target.open("xb") as writing:
        while chunk := reading.read(_COPY_BYTES):
            digest.update(chunk)
            writing.write(chunk)
    return digest.hexdigest()


def _remove(entry: Path) -> None:
    """Remove an entry, or whatever lies in its place."""
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def _last_used(entry: Path) -> float:
    try:
        return (entry / _ENTRY_NAME).stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return 0.0


def _size_bytes(entry: Path) -> int:
    files = [entry] if entry.is_file() else entry.rglob("*")
    return sum(path.stat().st_size for path in files if path.is_file())
