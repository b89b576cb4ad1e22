"""Files that change while the server runs: the new content, or the old when the new is damaged."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from omruntime.errors import ConfigError
from server.security.reloaded import Reloaded


def number_in(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"no number: {error}") from error


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "number"
    found.write_text("1")
    return found


def test_a_change_is_seen_by_the_next_use(path: Path) -> None:
    reads = []

    def read() -> int:
        reads.append(path)
        return number_in(path)

    file = Reloaded("the numbers", [path], read)
    assert [file.current(), file.current()] == [1, 1]
    assert len(reads) == 1, "an unchanged file was read again"
    path.write_text("23")
    assert file.current() == 23
    path.with_name("other").write_text("45")
    path.with_name("other").replace(path)
    assert file.current() == 45


def test_damage_and_absence_keep_the_old_content_and_are_logged_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = Reloaded("the numbers", [path], lambda: number_in(path))
    path.write_text("junk")
    assert [file.current(), file.current()] == [1, 1]
    path.unlink()
    assert file.current() == 1
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 2
    assert all("the old ones stay" in error for error in errors)
    path.write_text("7")
    assert file.current() == 7


def test_files_that_change_while_they_are_read_are_read_again(path: Path) -> None:
    """A certificate of one pair and the key of another must not be taken together."""
    second = path.with_name("second")
    second.write_text("1")
    halves: list[tuple[int, int]] = []

    def read() -> tuple[int, int]:
        first = number_in(path)
        if len(halves) == 1:
            second.write_text("222")
        halves.append((first, number_in(second)))
        return halves[-1]

    file = Reloaded("the numbers", [path, second], read)
    path.write_text("222")
    assert file.current() == (222, 222)
    assert len(halves) == 3


def test_the_first_reading_must_succeed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no number"):
        Reloaded("the numbers", [tmp_path / "absent"], lambda: number_in(tmp_path / "absent"))
