"""`export-om`: the command line of the build side.

Owns the parser and the exit code; each subcommand is a module of `commands/`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, MutableMapping, Sequence

from atc_pipeline.bundle import product_version
from atc_pipeline.commands import build, doctor, inspect, lint, plan, verify
from atc_pipeline.exit_codes import run_reported
from omruntime.command_parser import CommandParser


def main(argv: Sequence[str] | None = None) -> int:
    """Run `export-om`; returns the exit code.

    0 done, 1 unexpected, 2 wrong usage, setting or bundle, 3 export failed, 4 ATC failed,
    128 plus the number of a stop signal.
    """
    _share_the_cores(os.environ)
    options = parse_arguments(argv)
    command: Callable[[argparse.Namespace], int] = options.command
    return run_reported(lambda: command(options), options.traceback)


def _share_the_cores(environ: MutableMapping[str, str]) -> None:
    """Let waiting threads of torch sleep instead of spin; read when torch is loaded.

    On a machine that does other things as well, as CI machines do, a spinning thread takes the
    core from the one it waits for: a chain of small products was 40 times slower.
    """
    environ.setdefault("OMP_WAIT_POLICY", "passive")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line as attributes; `command` is the subcommand's function."""
    parser = CommandParser(
        prog="export-om",
        description="Build, check and show bundles that om-serve serves.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"omserve {product_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command_name")
    for command in (build, verify, inspect, doctor, lint, plan):
        command.add_parser(commands)
    options, rest = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    if rest:
        commands.choices[options.command_name].refuse_unknown(rest)
    return options
