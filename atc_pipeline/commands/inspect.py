"""`export-om inspect`: what is in a bundle, or in an OM file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from atc_pipeline.bundle_inspect import describe_as_json, describe_as_text, read_warnings
from atc_pipeline.commands.arguments import add_traceback
from atc_pipeline.om_inspect.as_json import to_plain
from atc_pipeline.om_inspect.facts import OmFacts
from atc_pipeline.om_inspect.gather import read_om_facts
from atc_pipeline.om_inspect.text import describe
from omruntime.bundle_files import bundle_path
from omruntime.command_parser import Commands
from omruntime.errors import ConfigError
from omruntime.manifest import Manifest


def add_parser(commands: Commands) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "inspect", help="show what is in a bundle or in an OM file", allow_abbrev=False
    )
    parser.set_defaults(command=_inspect)
    parser.add_argument("path", type=Path, help="a bundle folder, or an OM file")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    add_traceback(parser)


def _inspect(options: argparse.Namespace) -> int:
    # Everything else is taken for an OM, whose reader says what is wrong with it.
    show = _inspect_bundle if options.path.is_dir() else _inspect_om
    sys.stdout.write(show(options.path, options.json))
    return 0


def _inspect_om(path: Path, as_json: bool) -> str:
    if path.suffix == ".onnx":
        raise ConfigError(
            f"{path} is an ONNX file by its name, wanted a bundle or an OM; export-om lint checks "
            f"ONNX files"
        )
    facts = read_om_facts(path)
    return _to_json(to_plain(facts)) if as_json else describe(facts, str(path))


def _inspect_bundle(bundle: Path, as_json: bool) -> str:
    manifest = Manifest.read(bundle)
    warnings = read_warnings(bundle)
    programs = _read_programs(bundle, manifest)
    if not as_json:
        texts = [describe(facts, path) for path, facts in programs.items()]
        return "\n".join([describe_as_text(manifest, warnings), *texts])
    text = describe_as_json(manifest, warnings)
    if not programs:
        return text
    plain = {path: to_plain(facts) for path, facts in programs.items()}
    return _to_json(json.loads(text) | {"programs": plain})


def _read_programs(bundle: Path, manifest: Manifest) -> dict[str, OmFacts]:
    """The facts of each OM of the bundle, by its path."""
    paths = [program.path for program in manifest.programs if program.path.endswith(".om")]
    return {path: read_om_facts(bundle_path(bundle, path)) for path in paths}


def _to_json(plain: object) -> str:
    return json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
