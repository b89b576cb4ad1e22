"""`om-serve keys add | list | remove`: make, show and withdraw API keys.

A running server sees the change with its next request; nothing need be restarted.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from omruntime.command_parser import CommandParser
from omruntime.errors import ConfigError
from server.security.callers import Caller
from server.security.key_file import (
    KeyEntry,
    caller_from,
    hash_key,
    make_key,
    read_key_file,
    require_distinct,
    write_key_file,
)

FILE_VARIABLE = "OMSERVE_API_KEYS"


class _Parser(CommandParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; om-serve keys --help lists everything")


def run_keys(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command; returns 0.

    Raises:
        ConfigError: Wrong usage, or the file cannot be read or written.
    """
    arguments = _parser().parse_args(argv)
    given = arguments.file or environ.get(FILE_VARIABLE)
    if not given:
        raise ConfigError(f"no file: give --file, or {FILE_VARIABLE}, as for om-serve --api-keys")
    path = Path(given)
    if arguments.command == "list":
        _list(read_key_file(path))
        return 0
    with _locked(path):
        entries = read_key_file(path) if path.exists() or path.is_symlink() else ()
        if arguments.command == "add":
            _add(path, entries, arguments)
        else:
            _remove(path, entries, arguments.name)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="om-serve keys", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(
        dest="command", required=True, parser_class=_Parser, metavar="{add,list,remove}"
    )
    add = commands.add_parser("add", help="make a key, print it once, store its hash")
    add.add_argument("name", help="of the key, for logs and messages")
    add.add_argument("--tenant", help="whose it is; several keys may share one; default: NAME")
    add.add_argument(
        "--tenant-weight",
        type=float,
        help="the tenant's share; default: 1, or that of its other keys",
    )
    for flag, what in (
        ("--max-concurrent-requests", "requests at once; 0: for metrics alone"),
        ("--requests-per-minute", "requests that may begin in a minute"),
        ("--tokens-per-minute", "tokens of prompts and answers in a minute"),
    ):
        add.add_argument(flag, type=int, help=f"{what}; default: no limit")
    add.add_argument(
        "--operator",
        action="store_true",
        help="may drain, flush, dump, set the log level, and abort and see all requests",
    )
    listing = commands.add_parser("list", help="show all keys' names, tenants and limits")
    remove = commands.add_parser("remove", help="withdraw a key")
    remove.add_argument("name")
    for command in (add, listing, remove):
        command.add_argument("--file", help=f"the file of keys; default: {FILE_VARIABLE}")
    return parser


def _add(path: Path, entries: tuple[KeyEntry, ...], arguments: argparse.Namespace) -> None:
    fields = {k: v for k, v in vars(arguments).items() if v is not None}
    tenant = fields.get("tenant", arguments.name)
    for entry in entries:
        if entry.caller.tenant == tenant:
            fields.setdefault("tenant_weight", entry.caller.tenant_weight)
    caller = caller_from("keys add", fields)
    if any(entry.caller.name == caller.name for entry in entries):
        raise ConfigError(
            f"{path} has a key of the name {caller.name!r} already; choose another name, or take "
            f"the old one out: om-serve keys remove {caller.name}"
        )
    key = make_key()
    write_key_file(path, require_distinct(path, [*entries, KeyEntry(hash_key(key), caller)]))
    print(key)
    print(
        f"om-serve: this is the only time that the key is shown; {path} holds its hash; clients "
        f"send it as OMSERVE_API_KEY or `authorization: Bearer KEY`",
        file=sys.stderr,
    )


def _remove(path: Path, entries: tuple[KeyEntry, ...], name: str) -> None:
    left = [entry for entry in entries if entry.caller.name != name]
    if len(left) == len(entries):
        raise ConfigError(f"{path} has no key of the name {name!r}; om-serve keys list shows all")
    write_key_file(path, left)


def _list(entries: tuple[KeyEntry, ...]) -> None:
    for entry in entries:
        print(_line(entry.caller))


def _line(caller: Caller) -> str:
    limits = "".join(
        f" {name}={value}"
        for name in ("max_concurrent_requests", "requests_per_minute", "tokens_per_minute")
        if (value := getattr(caller, name)) is not None
    )
    right = " operator" if caller.operator else ""
    weight = f"tenant_weight={caller.tenant_weight:g}"
    return f"{caller.name} tenant={caller.tenant} {weight}{limits}{right}"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other runs of this command from writing meanwhile; by the folder, which stays."""
    try:
        folder = os.open(path.resolve().parent, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"cannot open the folder of {path}: {error.strerror}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
