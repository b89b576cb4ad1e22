"""What `npu-smi info` prints: one chip per pair of rows.

Source: npu-smi command reference of Atlas 200I A2 25.2.0 and Atlas 300I Pro 23.0.RC3, querying
basic information; the tables of an Atlas 300I Duo in Syllo/nvtop issue 421 and
vllm-project/vllm-ascend issue 3316.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

_VERSION = re.compile(r"\bVersion:\s*(\S+)")
_ID_AND_NAME = re.compile(r"([0-9]{1,6})\s+(\S+)")
_USAGE = re.compile(r"([0-9]{1,9})\s*/\s*([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Chip:
    """One chip; the two of a 300I Duo share `npu_id` and differ in `chip_id`.

    Attributes:
        device_id: The N of /dev/davinciN; None where this version prints none.
        health: As printed: OK, Warning, Alarm, Critical or UNKNOWN.
        used_mib, total_mib: Device memory; None where nothing was printed.
        hugepages: Used and all, in pages; a 310P card shows 0 and 0.
    """

    npu_id: int
    chip_id: int
    device_id: int | None
    name: str
    health: str
    used_mib: int | None
    total_mib: int | None
    hugepages: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class NpuSmi:
    """The whole table.

    Attributes:
        driver_version: As the head of the table says; empty when it says none.
    """

    driver_version: str
    chips: tuple[Chip, ...]


def parse_npu_smi(text: str) -> NpuSmi:
    """Read the table; lines of other forms are skipped, and text without a table has no chips."""
    version = _VERSION.search(text)
    # The table of processes that follows has four columns.
    rows = [_cells(line) for line in text.splitlines()]
    chips = []
    for upper, lower in pairwise(rows):
        chip = _parse_chip(upper, lower)
        if chip is not None:
            chips.append(chip)
    return NpuSmi(version.group(1) if version else "", tuple(chips))


def _cells(line: str) -> list[str]:
    line = line.strip()
    if len(line) < 2 or line[0] != "|" or line[-1] != "|":
        return []
    return [cell.strip() for cell in line[1:-1].split("|")]


def _parse_chip(upper: list[str], lower: list[str]) -> Chip | None:
    """Upper row: NPU and name, health, power; lower row: chip and device, bus, memory."""
    if len(upper) != 3 or len(lower) != 3:
        return None
    first = _ID_AND_NAME.fullmatch(upper[0])
    ids = lower[0].split()
    if first is None or not 1 <= len(ids) <= 2 or not all(_is_id(i) for i in ids):
        return None
    # Where there are several, the last pair is the memory that holds models.
    used, total = _last_usage(lower[2]) or (None, None)
    return Chip(
        npu_id=int(first.group(1)),
        chip_id=int(ids[0]),
        device_id=int(ids[1]) if len(ids) == 2 else None,
        name=first.group(2),
        health=upper[1],
        used_mib=used,
        total_mib=total,
        hugepages=_last_usage(upper[2]),
    )


def _last_usage(cell: str) -> tuple[int, int] | None:
    usages = _USAGE.findall(cell)
    return (int(usages[-1][0]), int(usages[-1][1])) if usages else None


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6
