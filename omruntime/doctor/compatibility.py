"""Compatibility: which versions fit together, as far as a published table says.

The tables are `data/compatibility.json`, each row with its source. What no row covers is unknown,
never assumed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TypeVar

_DATA = "data/compatibility.json"


@dataclass(frozen=True, slots=True)
class DriverRow:
    """Drivers (Ascend HDK) that the release notes of a CANN version list."""

    cann: str
    fits: tuple[str, ...]
    fits_not: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class PythonRow:
    """Python versions, both ends included, that the acl module of a CANN version is built for."""

    cann: str
    oldest: str
    newest: str
    source: str


@dataclass(frozen=True, slots=True)
class TorchRow:
    """One release of torch_npu.

    Attributes:
        cann: Empty where no table that was found names one.
    """

    torch_npu: str
    torch: str
    cann: str
    source: str


_Row = TypeVar("_Row", DriverRow, PythonRow)


def matches(version: str, pattern: str) -> bool:
    """Whether a version is the pattern's or a refinement of it.

    `25.0.rc1.1` matches `25.0.X`, `25.0.RC1` and `25.0`; case and kinds of separators do not
    count.
    """
    got, wanted = _parts(version), _parts(pattern)
    return bool(wanted) and got[: len(wanted)] == wanted


def _parts(version: str) -> list[str]:
    parts = [part for part in re.split(r"[.\-_+\s]+", version.lower()) if part]
    return parts[:-1] if parts[-1:] == ["x"] else parts


def as_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, `7.5.0.1.129` and `3.11` alike; empty for other text."""
    numbers: list[int] = []
    for part in version.strip().split("."):
        if not (part.isascii() and part.isdigit() and len(part) <= 9):
            break
        numbers.append(int(part))
    return tuple(numbers)


def find_driver_row(cann: str) -> DriverRow | None:
    """The most particular row for a CANN version."""
    return _most_particular(cann, driver_rows())


def find_python_row(cann: str) -> PythonRow | None:
    """The most particular row for a CANN version."""
    return _most_particular(cann, python_rows())


def find_torch_row(torch_npu: str) -> TorchRow | None:
    """The row of exactly this torch_npu release; local parts such as +git are left out."""
    release = torch_npu.partition("+")[0]
    return next((row for row in torch_rows() if row.torch_npu == release), None)


def _most_particular(cann: str, rows: Sequence[_Row]) -> _Row | None:
    fitting = [row for row in rows if matches(cann, row.cann)]
    return max(fitting, key=lambda row: len(_parts(row.cann)), default=None)


@cache
def driver_rows() -> tuple[DriverRow, ...]:
    """All rows, as the file orders them."""
    return tuple(
        DriverRow(
            _text(row, "cann"), _texts(row, "fits"), _texts(row, "fits_not"), _text(row, "source")
        )
        for row in _table("driver")
    )


@cache
def python_rows() -> tuple[PythonRow, ...]:
    """All rows, as the file orders them."""
    return tuple(_from_texts(PythonRow, row) for row in _table("python"))


@cache
def torch_rows() -> tuple[TorchRow, ...]:
    """All rows, as the file orders them."""
    return tuple(_from_texts(TorchRow, row) for row in _table("torch_npu"))


_Plain = TypeVar("_Plain", PythonRow, TorchRow)


def _from_texts(make: Callable[..., _Plain], row: dict[str, object]) -> _Plain:
    return make(**{key: _text(row, key) for key in row})


def _table(name: str) -> list[dict[str, object]]:
    data = json.loads(resources.files("omruntime.doctor").joinpath(_DATA).read_text("utf-8"))
    rows = data[name]
    assert isinstance(rows, list)
    return rows


def _text(row: dict[str, object], key: str) -> str:
    value = row[key]
    assert isinstance(value, str), f"{_DATA}: {key} is {value!r}"
    return value


def _texts(row: dict[str, object], key: str) -> tuple[str, ...]:
    values = row[key]
    assert isinstance(values, list), f"{_DATA}: {key} is {values!r}"
    return tuple(str(value) for value in values)
