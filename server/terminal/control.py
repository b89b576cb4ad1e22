"""The commands of `om-client` that look at a server and steer it: what an operator types."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TypeVar

from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message

from omruntime.command_parser import CommandParser, Commands
from omruntime.errors import RequestError
from server.client import Client
from server.pb import control_pb2 as pb
from server.terminal.call_flags import add_connection_flags, terminal_client_of
from server.terminal.tables import bucket_table, drain_line, info_lines, load_lines
from server.terminal.terminal_client import TerminalClient
from server.terminal.top import run_top

T = TypeVar("T")

_LEVELS = {
    "debug": pb.LOG_LEVEL_DEBUG,
    "info": pb.LOG_LEVEL_INFO,
    "warning": pb.LOG_LEVEL_WARNING,
    "error": pb.LOG_LEVEL_ERROR,
}


def add_control_commands(commands: Commands, epilog: str) -> dict[str, CommandParser]:
    """Add the commands; their parsers by name."""
    parsers = {}
    for name, (text, add_flags, _) in CONTROL_COMMANDS.items():
        parser = commands.add_parser(
            name, help=text, description=f"{text}.", epilog=epilog, allow_abbrev=False
        )
        add_flags(parser)
        add_connection_flags(parser)
        parsers[name] = parser
    return parsers


def run_control(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Run one of the commands; returns its exit code.

    Raises:
        RequestError, CallError: It cannot be sent, or failed.
    """
    client = terminal_client_of(arguments, environ)
    _, _, run = CONTROL_COMMANDS[arguments.command]
    return run(client, arguments)


def _one(client: TerminalClient, call: Callable[[Client], T]) -> T:
    (result,) = client.in_worker(lambda c: [call(c)])
    return result


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the reply as JSON")


def _info(client: TerminalClient, arguments: argparse.Namespace) -> int:
    server, model = _one(client, lambda c: (c.server_info(), c.model_info()))
    if arguments.json:
        print(f'{{"server": {_json(server)}, "model": {_json(model)}}}')
    else:
        print("\n".join(info_lines(server, model)))
    return 0


def _load(client: TerminalClient, arguments: argparse.Namespace) -> int:
    def first(c: Client) -> pb.WatchLoadResponse:
        return next(c.control.watch_load())

    snapshot = _one(client, first)
    print(_json(snapshot) if arguments.json else "\n".join(load_lines(snapshot)))
    return 0


def _buckets(client: TerminalClient, arguments: argparse.Namespace) -> int:
    response = _one(client, lambda c: c.control.buckets())
    print(_json(response) if arguments.json else "\n".join(bucket_table(response)))
    return 0


def _add_top_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval-s",
        type=float,
        default=1.0,
        metavar="X",
        help="seconds between two looks, 0.25 to 3600 (default: %(default)s)",
    )
    parser.add_argument(
        "--count", type=int, metavar="N", help="end after so many looks; default: at Ctrl-C"
    )


def _top(client: TerminalClient, arguments: argparse.Namespace) -> int:
    if arguments.count is not None and arguments.count < 1:
        raise RequestError(f"--count is {arguments.count}, wanted at least 1")
    snapshots = client.in_worker(lambda c: c.control.watch_load(arguments.interval_s, True))
    with closing(snapshots):
        return run_top(islice(snapshots, arguments.count))


def _add_abort_flags(parser: argparse.ArgumentParser) -> None:
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("request_id", nargs="?", metavar="ID", help="of the one request")
    target.add_argument("--tenant", help="all requests of a tenant; '' is that of no tenant")
    target.add_argument("--all", action="store_true", help="all requests")


def _abort(client: TerminalClient, arguments: argparse.Namespace) -> int:
    def abort(c: Client) -> int:
        if arguments.all:
            return c.control.abort_all()
        if arguments.tenant is not None:
            return c.control.abort_tenant(arguments.tenant)
        c.abort(arguments.request_id)
        return 1

    print(f"aborted {_one(client, abort)}")
    return 0


def _add_drain_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--grace-s",
        type=float,
        metavar="X",
        help="seconds that running requests get before they are aborted; default: the server's "
        "--drain-timeout-s",
    )


def _drain(client: TerminalClient, arguments: argparse.Namespace) -> int:
    """Print a line at each change; the exit code says nothing of what was aborted."""
    for progress in client.in_worker(lambda c: c.control.drain(arguments.grace_s)):
        print(drain_line(progress), flush=True)
    return 0


def _flush(client: TerminalClient, _: argparse.Namespace) -> int:
    num_blocks = _one(client, lambda c: c.control.flush_prefix_cache())
    print(f"forgot {num_blocks} blocks")
    return 0


def _add_level(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("level", choices=_LEVELS, help="log from this level on")


def _log_level(client: TerminalClient, arguments: argparse.Namespace) -> int:
    before = _one(client, lambda c: c.control.set_log_level(_LEVELS[arguments.level]))
    name = pb.LogLevel.Name(before).removeprefix("LOG_LEVEL_").lower()
    print(f"{arguments.level}; before: {name}")
    return 0


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: standard output")


def _dump(client: TerminalClient, arguments: argparse.Namespace) -> int:
    dump = _one(client, lambda c: c.control.dump_state())
    for cut in dump.cuts:
        print(f"om-client: cut: {cut}", file=sys.stderr)
    if arguments.output is None:
        print(dump.json)
        return 0
    try:
        arguments.output.write_text(dump.json + "\n", encoding="utf-8")
    except OSError as error:
        raise RequestError(f"cannot write {arguments.output}: {error.strerror}") from error
    return 0


def _json(message: Message) -> str:
    return MessageToJson(message, preserving_proto_field_name=True)


_Run = Callable[[TerminalClient, argparse.Namespace], int]
_AddFlags = Callable[[argparse.ArgumentParser], None]


def _add_nothing(_: argparse.ArgumentParser) -> None: ...


CONTROL_COMMANDS: Mapping[str, tuple[str, _AddFlags, _Run]] = {
    "info": (
        "Show what is served, by which limits, and what unset sampling fields mean",
        _add_json,
        _info,
    ),
    "load": ("Show what the server holds and has done", _add_json, _load),
    "top": (
        "Show what the server does in the terminal until Ctrl-C; a line for each look when piped",
        _add_top_flags,
        _top,
    ),
    "buckets": ("Show how the buckets are used, and what was padding", _add_json, _buckets),
    "abort": ("End requests", _add_abort_flags, _abort),
    "drain": (
        "Have the server finish what runs and take nothing new; ends when it is empty",
        _add_drain_flags,
        _drain,
    ),
    "flush": ("Have the server forget all cached prompt beginnings", _add_nothing, _flush),
    "log-level": ("Have the server log more or less", _add_level, _log_level),
    "dump": ("Get the server's state as JSON, for a report of a defect", _add_output, _dump),
}
"""By name: help, how flags are added, and what runs."""
