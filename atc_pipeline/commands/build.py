"""`export-om build`: a checkpoint becomes a bundle."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

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
from atc_pipeline.bundle import BuildRecord, ExportedGraph, parse_source_date
from atc_pipeline.bundle_inspect import summarise
from atc_pipeline.checkpoint_size import count_parameters
from atc_pipeline.commands.arguments import Commands, add_number, add_traceback, missing_libraries
from atc_pipeline.exit_codes import run_reported
from atc_pipeline.progress import StageProgress
from atc_pipeline.supervise import run_in_child, stop_signals


def add_parser(commands: Commands) -> None:
    """Add the subcommand."""
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
    add_number(parser, "--max-num-seqs", DEFAULT_MAX_NUM_SEQS, "sequences that run at once")
    add_number(parser, "--block-size", DEFAULT_BLOCK_SIZE, "tokens per block of the KV cache")
    add_number(parser, "--num-threads", 0, "threads of the libraries; 0 leaves it to them")
    add("--allow-unproven", action="store_true", help="let the parity gate alone decide")
    add("--allow-unused-tensors", action="store_true", help="accept tensors the model ignores")
    add_traceback(parser)


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
    print(f"{request.output}: {summarise(manifest)}")
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
            raise missing_libraries(error) from error
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
