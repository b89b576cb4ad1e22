"""`export-om lint`: whether ATC will take a graph, and what would run slowly on the device."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from atc_pipeline.commands.arguments import add_traceback, missing_libraries
from atc_pipeline.soc import DEFAULT_SOC, SOCS
from omruntime.command_parser import Commands

if TYPE_CHECKING:
    from atc_pipeline.lint.gears import Gears

# As a failed export; the graph is what the exporter would have to change.
REFUSED = 3


def add_parser(commands: Commands) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "lint",
        help="check an ONNX graph for ATC before compiling it",
        description="Exit code 0: fit for ATC; 3: not (with --strict, warnings count); 2: no such "
        "file or chip.",
        allow_abbrev=False,
    )
    parser.set_defaults(command=_lint)
    add = parser.add_argument
    add("graph", type=Path, help="ONNX file, bundle of --keep-onnx, or folder of build --emit")
    add(
        "--target",
        help=f"one of {', '.join(SOCS)} (default: what a folder was built for, else {DEFAULT_SOC})",
    )
    add("--buckets", type=Path, metavar="FILE", help="gears that `export-om plan --output` wrote")
    add("--strict", action="store_true", help="warnings, such as AI CPU operators, fail too")
    add("--json", action="store_true", help="as one JSON object")
    add_traceback(parser)


def _lint(options: argparse.Namespace) -> int:
    try:
        from atc_pipeline.lint.check import lint_model
    except ImportError as error:
        raise missing_libraries(error) from error
    report = lint_model(options.graph, options.target, _gears(options.buckets))
    sys.stdout.write(report.to_json() if options.json else report.to_text() + "\n")
    return REFUSED if report.refused(options.strict) else 0


def _gears(path: Path | None) -> Gears | None:
    from atc_pipeline.lint.gears import Gears
    from atc_pipeline.plan.gears_file import read_gears

    if path is None:
        return None
    planned = read_gears(path)
    return Gears.per_phase(planned.buckets, planned.num_blocks, planned.block_size)
