"""Whether this machine has the memory and the disk space that a build needs.

Owns the estimates' comparison with what there is; what a checkpoint needs is the caller's.
"""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

from omruntime.errors import ExportError

MIB = 1 << 20
# A cgroup without a limit reports a number near 2**63 in version 1.
_NO_LIMIT = 1 << 60


def require_disk(folder: Path, need_bytes: int) -> None:
    """Refuse when the file system of `folder`, which exists, has less than `need_bytes`.

    Raises:
        ExportError: The message states need and have.
    """
    have_bytes = shutil.disk_usage(folder).free
    if have_bytes < need_bytes:
        raise ExportError(
            f"too little disk space in {folder}: the build needs about {mib(need_bytes)}, "
            f"free are {mib(have_bytes)}; free some or choose another --output"
        )


def require_memory(need_bytes: int, have_bytes: int) -> None:
    """Refuse a build that would be killed half way.

    Raises:
        ExportError: The message states need and have.
    """
    if have_bytes < need_bytes:
        raise ExportError(
            f"too little memory: the build needs about {mib(need_bytes)}, this process can "
            f"have {mib(have_bytes)} (machine, cgroup and ulimit -v considered); "
            f"raise the limit or build on a larger machine"
        )


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Memory that this process can still take: the least of machine, cgroups and ulimit -v.

    Args:
        root: Where `proc` and `sys` are found.
    """
    found = [_machine_available(root), _address_space_available(root)]
    found += [_cgroup_available(folder) for folder in _cgroup_folders(root)]
    return max(0, min(value for value in found if value is not None))


def mib(num_bytes: int) -> str:
    """A size for a message."""
    return f"{num_bytes / MIB:,.0f} MiB"


def _machine_available(root: Path) -> int:
    for line in _read_lines(root / "proc/meminfo"):
        key, _, rest = line.partition(":")
        if key == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return _NO_LIMIT


def _address_space_available(root: Path) -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    used_pages = [int(line.split()[0]) for line in _read_lines(root / "proc/self/statm")]
    return limit - sum(used_pages) * resource.getpagesize()


def _cgroup_folders(root: Path) -> list[Path]:
    """The memory cgroup of this process and all above it, in version 2 or 1."""
    folders = []
    for line in _read_lines(root / "proc/self/cgroup"):
        _, controllers, inside = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        parts = Path(inside).parts[1:]
        folders += [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    return folders


def _cgroup_available(folder: Path) -> int | None:
    for limit_name, used_name, reclaimable in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit = _read_int(folder / limit_name)
        used = _read_int(folder / used_name)
        if limit is not None and used is not None and limit < _NO_LIMIT:
            return limit - used + _read_stat(folder / "memory.stat", reclaimable)
    return None


def _read_int(path: Path) -> int | None:
    """The number in a control file; None without the file or for the word max."""
    text = "".join(_read_lines(path))
    return int(text) if text.isdigit() else None


def _read_stat(path: Path, key: str) -> int:
    return next((int(ln.split()[1]) for ln in _read_lines(path) if ln.split()[0] == key), 0)


def _read_lines(path: Path) -> list[str]:
    """The lines of a file of the kernel; empty where this system has no such file."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
