"""The doctor as a subcommand, the same for `export-om` and `om-serve`."""

from __future__ import annotations

import argparse
import sys

from omruntime.doctor.checks import examine
from omruntime.doctor.machine import Machine, this_machine
from omruntime.doctor.report import as_json, as_text, exit_code

HELP = "say what is wrong with this machine for Ascend cards, and how to mend it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what both programs take."""
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def run_doctor(as_object: bool, machine: Machine | None = None) -> int:
    """Print the report on stdout.

    Args:
        as_object: As JSON.
        machine: None for the one that this runs on.

    Returns:
        The exit code: 1 when something will not work.
    """
    findings = examine(machine if machine is not None else this_machine())
    sys.stdout.write((as_json if as_object else as_text)(findings))
    return exit_code(findings)
