"""`export-om doctor`: what is wrong with this machine for Ascend cards.

With `--probe` also what the project assumes of ATC and of a card, checked on this machine.
"""

from __future__ import annotations

import argparse
import os
import sys

from atc_pipeline.atc.find import find_atc
from atc_pipeline.commands.arguments import add_traceback, missing_libraries
from atc_pipeline.probe.acl_calls import Acl
from atc_pipeline.progress import StageProgress
from atc_pipeline.soc import DEFAULT_SOC, find_soc
from atc_pipeline.supervise import stop_signals
from omruntime.command_parser import Commands
from omruntime.doctor.command import HELP, add_arguments, run_doctor
from omruntime.errors import AtcError, ConfigError, DeviceError


def add_parser(commands: Commands) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("doctor", help=HELP, allow_abbrev=False)
    parser.set_defaults(command=_doctor)
    add_arguments(parser)
    parser.add_argument(
        "--probe",
        action="store_true",
        help="instead compile and run small programs that check what this project assumes of ATC "
        "and of the card; needs CANN and a card",
    )
    parser.add_argument("--target", help=f"chip to probe (default: {DEFAULT_SOC})")
    parser.add_argument("--atc", metavar="PATH", help="compiler to use; else it is looked for")
    parser.add_argument("--device", type=int, metavar="N", help="device to probe (default: 0)")
    add_traceback(parser)


def _doctor(options: argparse.Namespace) -> int:
    if options.probe:
        return _probe(options)
    for flag in ("target", "atc", "device"):
        if getattr(options, flag) is not None:
            raise ConfigError(
                f"--{flag} is for --probe alone; give --probe as well, or leave it out"
            )
    return run_doctor(options.json)


def _probe(options: argparse.Namespace) -> int:
    """Run what can run; 1 unless every assumption was checked on a card and none was refuted."""
    try:
        from atc_pipeline.probe.run import as_json, as_text, probe_card, report_without
    except ImportError as error:
        raise missing_libraries(error) from error
    # Before anything is looked for: a slip is no statement about this machine.
    soc = find_soc(options.target or DEFAULT_SOC).name
    device_id = options.device or 0
    if device_id < 0:
        raise ConfigError(f"--device is {device_id}, wanted the number of a chip, 0 or above")
    try:
        tool = find_atc(options.atc, os.environ)
        acl = _import_acl()
        with stop_signals(), StageProgress(sys.stderr) as progress:
            report = probe_card(tool, soc, (acl, device_id), progress)
    except (AtcError, DeviceError) as error:
        report = report_without(str(error))
    sys.stdout.write((as_json if options.json else as_text)(report))
    return report.exit_code


def _import_acl() -> Acl:
    try:
        import acl
    except ImportError as error:
        raise DeviceError(
            f"the acl module cannot be imported ({error}), so no card can be probed; "
            f"export-om doctor says why"
        ) from error
    module: Acl = acl
    return module
