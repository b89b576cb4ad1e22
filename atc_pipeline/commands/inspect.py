"""`export-om inspect`: what is in a bundle."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from atc_pipeline.bundle_inspect import describe_as_json, describe_as_text, read_warnings
from atc_pipeline.commands.arguments import Commands, add_traceback
from omruntime.manifest import Manifest


def add_parser(commands: Commands) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("inspect", help="show what is in a bundle", allow_abbrev=False)
    parser.set_defaults(command=_inspect)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    add_traceback(parser)


def _inspect(options: argparse.Namespace) -> int:
    manifest = Manifest.read(options.bundle)
    describe = describe_as_json if options.json else describe_as_text
    sys.stdout.write(describe(manifest, read_warnings(options.bundle)))
    return 0
