"""The tables of published version pairs."""

from __future__ import annotations

import pytest

from omruntime.doctor.compatibility import (
    as_numbers,
    driver_rows,
    find_driver_row,
    find_python_row,
    find_torch_row,
    matches,
    python_rows,
    torch_rows,
)


@pytest.mark.parametrize(
    ("version", "pattern", "fits"),
    [
        ("25.0.rc1.1", "25.0.X", True),
        ("25.0.rc1.1", "25.0.RC1", True),
        ("25.0.rc2", "25.0.RC1", False),
        ("25.10.0", "25.1.X", False),
        ("9.0.0-beta.2", "9.0.X", True),
        ("8.5.0.alpha002", "8.5.0", True),
        ("8.5", "8.5.0", False),
        ("", "8.5.0", False),
        ("8.5.0", "", False),
    ],
)
def test_a_version_matches_what_it_refines(version: str, pattern: str, fits: bool) -> None:
    assert matches(version, pattern) is fits


def test_the_most_particular_row_wins() -> None:
    alpha, final = find_python_row("8.5.0.alpha002"), find_python_row("8.5.0")
    assert alpha is not None
    assert final is not None
    assert (alpha.newest, final.newest) == ("3.11.4", "3.13.9")


def test_what_no_table_names_is_unknown() -> None:
    assert find_driver_row("7.0.0") is None
    assert find_python_row("") is None
    assert find_torch_row("2.13.0.post9") is None


def test_local_parts_of_a_wheels_version_do_not_count() -> None:
    assert find_torch_row("2.9.0+git1234") == find_torch_row("2.9.0")


def test_every_row_names_its_source_and_readable_versions() -> None:
    assert all(row.source for row in (*driver_rows(), *python_rows(), *torch_rows()))
    assert all(as_numbers(row.oldest) and as_numbers(row.newest) for row in python_rows())
    assert all(not set(row.fits) & set(row.fits_not) for row in driver_rows())
    releases = [row.torch_npu for row in torch_rows()]
    assert len(set(releases)) == len(releases)
    for row in torch_rows():
        assert row.torch_npu == row.torch or row.torch_npu.startswith(f"{row.torch}.post")
