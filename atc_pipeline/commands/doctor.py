"""`export-om doctor`: what is wrong with this machine for Ascend cards."""

from __future__ import annotations

import argparse

from atc_pipeline.commands.arguments import Commands, add_traceback
from omruntime.doctor.command import HELP, add_arguments, run_doctor


def add_parser(commands: Commands) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("doctor", help=HELP, allow_abbrev=False)
    parser.set_defaults(command=_doctor)
    add_arguments(parser)
    add_traceback(parser)


def _doctor(options: argparse.Namespace) -> int:
    return run_doctor(options.json)
