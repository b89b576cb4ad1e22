"""MemoryTrack: what a process holds over a long run, and whether it grows with the work.

A page of a mapped file, weights for example, becomes resident when it is first read and goes back
to the kernel when that wants it. Such pages are reported; what must not grow is what the process
allocated itself and the files that it maps.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import psutil

from bench.soak import slope


class Look(NamedTuple):
    """A process after `num_done` pieces of work, in bytes.

    Attributes:
        own: Resident and backed by no file.
        mapped: Resident pages of mapped files.
        mappings: Size of all file mappings, resident or not.
    """

    num_done: int
    own: int
    mapped: int
    mappings: int


class MemoryTrack:
    """Looks at one process at equal distances; Linux only."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._looks: list[Look] = []

    def look(self, num_done: int) -> None:
        """Note what it holds now, after so many pieces of work."""
        memory = psutil.Process(self._pid).memory_info()
        own = memory.rss - memory.shared
        self._looks.append(Look(num_done, own, memory.shared, _mappings(self._pid)))

    @property
    def bytes_each(self) -> float:
        """By how much `own` grows for each piece of work, over all but the first fifth."""
        return slope([(look.num_done, look.own) for look in self._settled()])

    def report(self) -> str:
        """The first look, the middle one and the last."""
        first, middle, last = (self._looks[i] for i in (0, len(self._looks) // 2, -1))
        return (
            f"{_mb(first.own)} MB of its own after {first.num_done}, {_mb(middle.own)} MB in the "
            f"middle, {_mb(last.own)} MB after {last.num_done}; {self.bytes_each:+.1f} bytes for "
            f"each; pages of files {_mb(first.mapped)}, {_mb(middle.mapped)}, {_mb(last.mapped)} MB"
        )

    def faults(self, max_bytes_each: float) -> list[str]:
        """What has grown with the work."""
        found, settled = [], self._settled()
        if self.bytes_each > max_bytes_each:
            found.append(
                f"memory grows by {self.bytes_each:.0f} bytes for each of {settled[-1].num_done} "
                f"pieces of work, more than {max_bytes_each:g}"
            )
        more = settled[-1].mappings - settled[0].mappings
        if more > 0:
            found.append(f"files are mapped for {more} bytes more than after the first fifth")
        return found

    def _settled(self) -> list[Look]:
        return self._looks[len(self._looks) // 5 :]


def _mappings(pid: int) -> int:
    total = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        addresses, _, _, _, inode = line.split(maxsplit=5)[:5]
        if inode != "0":
            begin, end = addresses.split("-")
            total += int(end, 16) - int(begin, 16)
    return total


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f}"
