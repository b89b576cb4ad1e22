"""`export-om`: the command line of the build side.

Owns arguments and what is printed. The subcommands import the exporter inside of their
functions, so that `inspect` and `--help` need no torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from atc_pipeline.build import (
    BUILT_IN_TARGETS,
    BuildNeeds,
    BuildRequest,
    Exporter,
    Progress,
    fill_bundle,
    require_built_in,
    require_room,
)
from atc_pipeline.building_folder import BuildingFolder, building_folder
from atc_pipeline.bundle import BuildRecord, ExportedGraph, parse_source_date, product_version
from atc_pipeline.bundle_inspect import describe_as_json, describe_as_text, read_warnings
from atc_pipeline.checkpoint_size import count_parameters
from atc_pipeline.exit_codes import run_reported
from atc_pipeline.progress import StageProgress
from atc_pipeline.resources import mib
from atc_pipeline.supervise import run_in_child, stop_signals
from atc_pipeline.verify import verify_bundle
from omruntime.errors import ConfigError
from omruntime.manifest import Manifest

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run `export-om`; returns the exit code.

    0 done, 1 unexpected, 2 wrong usage, setting or bundle, 3 export failed, 4 ATC failed,
    128 plus the number of a stop signal.
    """
    options = parse_arguments(argv)
    command: Callable[[argparse.Namespace], int] = options.command
    return run_reported(lambda: command(options), options.traceback)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line as attributes; `command` is the subcommand's function."""
    parser = argparse.ArgumentParser(
        prog="export-om",
        description="Build, check and show bundles that om-serve serves.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"omserve {product_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_build(commands)
    _add_verify(commands)
    _add_inspect(commands)
    return parser.parse_args(argv)


def build_supervised(request: BuildRequest, export: Exporter, show_traceback: bool) -> int:
    """Build in a child process and clean up after it; returns the exit code.

    Raises:
        OmError: The output is taken, there is too little room, or a signal ended the child.
        StopRequested: A stop signal came; the child and its files are gone.
    """

    def fill() -> int:
        return run_reported(lambda: _fill(building, request, export), show_traceback)

    with stop_signals(), building_folder(request.output) as building:
        require_room(request.needs, building.output.parent)
        return run_in_child(fill)


def _fill(building: BuildingFolder, request: BuildRequest, export: Exporter) -> int:
    with StageProgress(sys.stderr) as progress:
        manifest, warnings = fill_bundle(building, request.record, export, progress)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{request.output}: {_summary(manifest)}")
    return 0


def _build(options: argparse.Namespace) -> int:
    from export.spec import ExportSpec

    require_built_in(options.target)
    spec = ExportSpec(
        checkpoint=options.checkpoint,
        name=options.name,
        block_size=options.block_size,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        allow_unproven=options.allow_unproven,
        allow_unused_tensors=options.allow_unused_tensors,
        num_threads=options.num_threads,
    )

    def export(out_dir: Path, progress: Progress) -> ExportedGraph:
        progress("loading the export libraries")
        try:
            from export.build import export_step_graph
        except ImportError as error:
            raise _missing_libraries(error) from error
        return export_step_graph(spec, out_dir, progress)

    record = BuildRecord(
        target=options.target,
        checkpoint_name=_checkpoint_name(options.checkpoint),
        flags=_accepting_flags(options),
        source_date=parse_source_date(os.environ),
    )
    needs = BuildNeeds.of_parameters(count_parameters(spec.path))
    request = BuildRequest(options.output, record, needs)
    return build_supervised(request, export, options.traceback)


def _verify(options: argparse.Namespace) -> int:
    # So that SIGTERM, too, removes what loading a checkpoint puts into the temporary folder.
    with stop_signals(), StageProgress(sys.stderr) as progress:
        verified = verify_bundle(options.bundle, progress)
        progress("replaying the recorded answers in ONNX Runtime")
        found = [_replay(options.bundle, verified.manifest, options.num_threads)]
        if options.checkpoint is not None:
            found.append(_recheck(options, verified.manifest, progress))
    print(f"{options.bundle}: {_summary(verified.manifest)}")
    print(f"files: {verified.num_files} of {mib(verified.total_bytes)} together, unchanged")
    print("\n".join(found))
    return 0


def _replay(bundle: Path, manifest: Manifest, num_threads: int) -> str:
    """Run the program against the recorded reference; returns what was found, in words."""
    if num_threads < 0:
        raise ConfigError(f"num_threads is {num_threads}, wanted 0 or more")
    try:
        from export.replay import replay_bundle
    except ImportError as error:
        raise _missing_libraries(error) from error
    report = replay_bundle(bundle, manifest, num_threads)
    return (
        f"replay: {report.num_tokens} greedy tokens equal to the checkpoint's "
        f"({report.num_near_ties} near ties), logits within {report.max_abs_logits_diff:.2g}"
    )


def _recheck(options: argparse.Namespace, manifest: Manifest, progress: Progress) -> str:
    """Run the whole parity gate against the checkpoint; returns what was found, in words."""
    from export.spec import ExportSpec

    spec = ExportSpec(
        checkpoint=options.checkpoint,
        block_size=manifest.kv.block_size,
        # Whatever the build accepted is settled; the gate alone decides here.
        allow_unproven=True,
        allow_unused_tensors=True,
        num_threads=options.num_threads,
    )
    progress("loading the export libraries")
    try:
        from export.recheck import recheck_bundle
    except ImportError as error:
        raise _missing_libraries(error) from error
    parity = recheck_bundle(options.bundle, manifest, spec, progress)
    return (
        f"parity: {parity.num_cases} cases and {parity.num_greedy_tokens} greedy tokens equal to "
        f"the checkpoint's, logits within {parity.max_abs_logits_diff:.2g} "
        f"(tolerance {parity.tolerance:.2g})"
    )


def _inspect(options: argparse.Namespace) -> int:
    manifest = Manifest.read(options.bundle)
    describe = describe_as_json if options.json else describe_as_text
    sys.stdout.write(describe(manifest, read_warnings(options.bundle)))
    return 0


def _summary(manifest: Manifest) -> str:
    parity = manifest.parity
    num_buckets = sum(len(program.buckets) for program in manifest.programs)
    return (
        f"{manifest.model.name}, {num_buckets} buckets, logits within "
        f"{parity.max_abs_logits_diff:.2g} of the checkpoint over {parity.num_cases} cases"
    )


def _checkpoint_name(checkpoint: str) -> str:
    """The last part of a path, so that the bundle does not depend on the folder; or a Hub id."""
    if Path(checkpoint).exists():
        return Path(checkpoint).absolute().name
    return checkpoint


def _accepting_flags(options: argparse.Namespace) -> tuple[str, ...]:
    flags = {
        "--allow-unproven": options.allow_unproven,
        "--allow-unused-tensors": options.allow_unused_tensors,
    }
    return tuple(flag for flag, given in flags.items() if given)


def _missing_libraries(error: ImportError) -> ConfigError:
    return ConfigError(
        f"this command needs the export libraries ({error}); "
        f"install them with: pip install 'omserve[export]'"
    )


def _add_build(commands: Commands) -> None:
    from export.spec import DEFAULT_BLOCK_SIZE, DEFAULT_MAX_MODEL_LEN, DEFAULT_MAX_NUM_SEQS

    parser = commands.add_parser(
        "build", help="export a checkpoint into a bundle", allow_abbrev=False
    )
    parser.set_defaults(command=_build)
    parser.add_argument(
        "checkpoint", help="folder with safetensors, GGUF file, or Hub id when there is a network"
    )
    add = parser.add_argument
    add("--output", type=Path, required=True, metavar="DIR", help="bundle to write or replace")
    targets = ", ".join(BUILT_IN_TARGETS)
    add("--target", required=True, help=f"what to build for; built in: {targets}")
    add("--name", help="the model's name for clients (default: the checkpoint's)")
    own = f"the model's own, at most {DEFAULT_MAX_MODEL_LEN}"
    add("--max-model-len", type=int, metavar="N", help=f"tokens per sequence (default: {own})")
    _add_number(parser, "--max-num-seqs", DEFAULT_MAX_NUM_SEQS, "sequences that run at once")
    _add_number(parser, "--block-size", DEFAULT_BLOCK_SIZE, "tokens per block of the KV cache")
    _add_number(parser, "--num-threads", 0, "threads of the libraries; 0 leaves it to them")
    add("--allow-unproven", action="store_true", help="let the parity gate alone decide")
    add("--allow-unused-tensors", action="store_true", help="accept tensors the model ignores")
    _add_traceback(parser)


def _add_verify(commands: Commands) -> None:
    parser = commands.add_parser(
        "verify", help="check a bundle: hashes, buckets, and its answers again", allow_abbrev=False
    )
    parser.set_defaults(command=_verify)
    parser.add_argument("bundle", type=Path)
    parser.add_argument(
        "--checkpoint", help="also compare with this checkpoint; needs the export libraries"
    )
    _add_number(parser, "--num-threads", 0, "threads of the libraries; 0 leaves it to them")
    _add_traceback(parser)


def _add_inspect(commands: Commands) -> None:
    parser = commands.add_parser("inspect", help="show what is in a bundle", allow_abbrev=False)
    parser.set_defaults(command=_inspect)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    _add_traceback(parser)


def _add_number(parser: argparse.ArgumentParser, flag: str, default: int, text: str) -> None:
    text = f"{text} (default: {default})"
    parser.add_argument(flag, type=int, metavar="N", default=default, help=text)


def _add_traceback(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--traceback", action="store_true", help="show where an error arose")
