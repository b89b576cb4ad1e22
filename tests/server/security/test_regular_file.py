"""What stands where a file of keys or certificates is wanted must not hold the server up."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from omruntime.errors import ConfigError
from server.security.api_keys import ApiKeys
from server.security.key_file import read_key_file
from server.security.regular_file import MAX_BYTES, read_regular
from server.security.tls import ServerTls, TlsFiles
from tests.server.key_files import add_key

LIMIT_S = 10


def make_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)


MAKERS: dict[str, Callable[[Path], object]] = {
    "it is a pipe": os.mkfifo,
    "Is a directory": Path.mkdir,
    "it is a device": lambda path: path.symlink_to("/dev/zero"),
    "it is larger than 4,194,304 bytes": make_huge,
}


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("words", MAKERS)
def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path, words: str) -> None:
    path = tmp_path / "keys.json"
    MAKERS[words](path)
    with pytest.raises(ConfigError, match=words) as caught:
        read_key_file(path)
    assert str(path) in str(caught.value)
    with pytest.raises(ConfigError, match=f"tls_cert: cannot read .*{words}"):
        ServerTls(TlsFiles(path, path))


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("words", MAKERS)
def test_what_is_no_file_any_more_leaves_the_old_keys(
    tmp_path: Path, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    add_key(path, "key", "alice")
    keys = ApiKeys(path)
    path.unlink()
    MAKERS[words](path)
    for _ in range(2):
        assert keys.authenticate(["Bearer key"]).name == "alice"
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    assert words in errors[0]


def test_a_link_and_the_largest_file_are_read(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"x" * MAX_BYTES)
    link.symlink_to(path)
    assert len(read_regular(link)) == MAX_BYTES
