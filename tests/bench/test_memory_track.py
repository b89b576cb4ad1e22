"""A long run's memory: growth is noticed, and pages of a file are none."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.memory_track import MemoryTrack

MB = 1_000_000
NUM_LOOKS = 20


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[mmap.mmap]:
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(40 * MB))
    with path.open("rb") as file, closing(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)) as view:
        yield view


def test_what_a_process_keeps_for_each_piece_of_work_is_noticed() -> None:
    track, kept = MemoryTrack(os.getpid()), []
    for count in range(NUM_LOOKS):
        # Pages of its own: the heap may have some left over from others.
        kept.append(mmap.mmap(-1, MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        kept[-1].write(b"\1" * MB)
        track.look(count)
    assert track.bytes_each == pytest.approx(MB, rel=0.3)
    (fault,) = track.faults(max_bytes_each=MB / 10)
    assert "memory grows by" in fault


def test_pages_of_a_file_that_are_read_late_are_no_growth(mapped: mmap.mmap) -> None:
    track = MemoryTrack(os.getpid())
    for count in range(NUM_LOOKS):
        sum(mapped[count * 2 * MB : (count + 1) * 2 * MB : mmap.PAGESIZE])
        track.look(count)
    assert track.faults(max_bytes_each=MB / 10) == []
    assert "pages of files" in track.report()


def test_files_that_are_mapped_anew_for_each_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    path.write_bytes(bytes(mmap.PAGESIZE))
    track, kept = MemoryTrack(os.getpid()), []
    for count in range(NUM_LOOKS):
        with path.open("rb") as file:
            kept.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        track.look(count)
    (fault,) = track.faults(max_bytes_each=MB)
    assert "files are mapped" in fault
