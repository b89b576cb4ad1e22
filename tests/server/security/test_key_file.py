"""The file of API keys, and the command that writes it."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from omruntime.errors import ConfigError
from server.cli import main
from server.security.api_keys import ApiKeys
from server.security.key_file import MAX_KEYS, hash_key, read_key_file
from server.security.keys_command import run_keys

HASH = hash_key("k").hex()


def make(path: Path, *argv: str) -> int:
    return run_keys([*argv, "--file", str(path)], {})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_a_made_key_is_shown_once_and_its_hash_is_kept(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = ("--max-concurrent-requests", "2", "--requests-per-minute", "3")
    assert make(path, "add", "alice", "--tenant", "red", "--tenant-weight", "2", *limits) == 0
    key = capsys.readouterr().out.strip()
    assert key not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    caller = ApiKeys(path).authenticate([f"Bearer {key}"])
    assert (caller.name, caller.tenant, caller.tenant_weight) == ("alice", "red", 2.0)
    assert (caller.max_concurrent_requests, caller.requests_per_minute) == (2, 3)
    assert caller.tokens_per_minute is None
    assert len(key) > 45, "too few random characters for a plain hash"


def test_keys_are_listed_and_withdrawn(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(path, "add", "alice")
    make(path, "add", "bob", "--tokens-per-minute", "9")
    bob = capsys.readouterr().out.split()[-1]
    make(path, "list")
    assert capsys.readouterr().out.splitlines() == [
        "alice tenant=alice tenant_weight=1",
        "bob tenant=bob tenant_weight=1 tokens_per_minute=9",
    ]
    make(path, "remove", "alice")
    assert [entry.caller.name for entry in read_key_file(path)] == ["bob"]
    assert ApiKeys(path).authenticate([f"Bearer {bob}"]).name == "bob"


def test_a_further_key_of_a_tenant_takes_its_weight(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(path, "add", "a", "--tenant", "red", "--tenant-weight", "3")
    make(path, "add", "b", "--tenant", "red")
    assert [entry.caller.tenant_weight for entry in read_key_file(path)] == [3, 3]
    with pytest.raises(ConfigError, match="tenant 'red' has tenant_weight 3 by key 'a' and 1 by"):
        make(path, "add", "c", "--tenant", "red", "--tenant-weight", "1")
    assert len(read_key_file(path)) == 2


def test_a_rewritten_file_keeps_its_mode_and_its_link(path: Path) -> None:
    make(path, "add", "alice")
    path.chmod(0o640)
    link = path.with_name("link.json")
    link.symlink_to(path)
    make(link, "add", "bob")
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert len(read_key_file(path)) == 2
    assert sorted(p.name for p in path.parent.iterdir()) == ["keys.json", "link.json"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["add", "alice"], "has a key of the name 'alice' already"),
        (["add", "a b"], "name is 'a b'"),
        (["add", "x" * 65], "wanted 1 to 64 letters"),
        (["add", "bob", "--tenant", "a:b"], "tenant is 'a:b'"),
        (["add", "bob", "--tenant-weight", "0"], "tenant_weight is 0.0, wanted a number from"),
        (["add", "bob", "--tenant-weight", "1e-300"], "tenant_weight is 1e-300, wanted a number"),
        (["add", "bob", "--requests-per-minute", "0"], "wanted a whole number from 1 to"),
        (["add", "bob", "--requests-per-minute", "x"], "om-serve keys --help"),
        (["remove", "bob"], "no key of the name 'bob'"),
        (["rename", "bob"], "om-serve keys --help"),
        ([], "{add,list,remove}"),
    ],
)
def test_wrong_commands_are_refused(path: Path, argv: list[str], words: str) -> None:
    make(path, "add", "alice")
    before = path.read_bytes()
    with pytest.raises(ConfigError) as caught:
        run_keys([*argv, *(["--file", str(path)] if argv else [])], {})
    assert words in str(caught.value)
    assert path.read_bytes() == before


def test_the_file_comes_from_the_servers_variable(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMSERVE_API_KEYS", str(path))
    assert main(["keys", "add", "alice"]) == 0
    assert len(read_key_file(path)) == 1
    monkeypatch.delenv("OMSERVE_API_KEYS")
    assert main(["keys", "list"]) == 2
    assert "give --file, or OMSERVE_API_KEYS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "is not of the form"),
        ({"keys": {}}, "is not of the form"),
        ({"keys": [], "more": 1}, "is not of the form"),
        ({"keys": [1]}, "key 0 is no object"),
        ({"keys": [{"name": "a"}]}, "sha256 is not 64 hexadecimal digits"),
        ({"keys": [{"name": "a", "sha256": HASH.upper()}]}, "in lower case"),
        ({"keys": [{"sha256": HASH}]}, "name is None"),
        ({"keys": [{"name": "a", "sha256": HASH, "rpm": 1}]}, "has the fields rpm"),
        ({"keys": [{"name": "a", "sha256": HASH, "tenant_weight": True}]}, "tenant_weight is True"),
        ({"keys": [{"name": "a", "sha256": HASH, "tokens_per_minute": 1.5}]}, "whole number"),
        ({"keys": [{"name": "a", "sha256": HASH, "tokens_per_minute": 10**400}]}, "to 9007199254"),
        ({"keys": [{"name": n, "sha256": HASH} for n in "ab"]}, "has the key of 'b' twice"),
        (
            {
                "keys": [
                    {"name": "a", "sha256": HASH, "tenant": "t"},
                    {"name": "b", "sha256": "0" * 64, "tenant": "t", "tenant_weight": 2},
                ]
            },
            "tenant 't' has tenant_weight 1 by key 'a' and 2 by 'b'",
        ),
        (
            {"keys": [{"name": str(n), "sha256": f"{n:064x}"} for n in range(MAX_KEYS + 1)]},
            f"wanted at most {MAX_KEYS}",
        ),
    ],
)
def test_damaged_files_are_refused_by_name(path: Path, data: Any, words: str) -> None:
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError) as caught:
        ApiKeys(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100_000])
def test_what_is_not_json_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is not JSON"):
        ApiKeys(path)


def test_a_missing_file_is_refused_with_the_command_that_makes_one(path: Path) -> None:
    with pytest.raises(ConfigError, match="om-serve keys add NAME"):
        ApiKeys(path)
