"""`export-om build`: a checkpoint becomes a bundle, here or with a compiler elsewhere."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from atc_pipeline.build import BuildNeeds, BuildRequest, Exporter, Progress
from atc_pipeline.bundle import BuildRecord, ExportedGraph, parse_source_date
from atc_pipeline.checkpoint_size import count_parameters
from atc_pipeline.commands.arguments import missing_libraries
from atc_pipeline.commands.build_ascend import ascend_build, job_settings, lint_for_atc
from atc_pipeline.commands.build_options import (
    BuildKind,
    accepting_flags,
    add_build_parser,
    find_build_kind,
)
from atc_pipeline.commands.build_runs import (
    Drafting,
    build_ascend_supervised,
    build_supervised,
    bundle_compiled,
    emit_supervised,
)
from atc_pipeline.plan.gears_file import read_gears
from omruntime.command_parser import Commands
from omruntime.errors import ConfigError


def add_parser(commands: Commands) -> None:
    """Add the subcommand."""
    from export.profiles import PROFILES

    targets = tuple(target for profile in PROFILES for target in profile.targets)
    add_build_parser(commands, targets).set_defaults(command=_build)


def _build(options: argparse.Namespace) -> int:
    kind = find_build_kind(options)
    if kind is BuildKind.FROM_COMPILED:
        return bundle_compiled(
            options.from_compiled, options.output, options.strict, options.keep_onnx
        )
    request, export = _request(options, kind)
    if kind is BuildKind.CPU:
        return build_supervised(request, export, options.traceback)
    settings, is_simulated = job_settings(options)
    lint = lint_for_atc(options.target, settings, options.strict)
    drafting = Drafting(export, lint, options.traceback)
    if kind is BuildKind.EMIT:
        return emit_supervised(request, drafting, settings, is_simulated)
    return build_ascend_supervised(request, drafting, ascend_build(options))


def _request(options: argparse.Namespace, kind: BuildKind) -> tuple[BuildRequest, Exporter]:
    checkpoint, profile_name, export = _exporter(options)
    num_parameters = count_parameters(checkpoint)
    is_cpu = kind is BuildKind.CPU
    needs = BuildNeeds.of_parameters if is_cpu else BuildNeeds.of_ascend
    record = BuildRecord(
        target=options.target,
        checkpoint_name=_checkpoint_name(options.checkpoint),
        flags=accepting_flags(options),
        source_date=parse_source_date(os.environ),
        profile=profile_name,
    )
    output = options.emit if kind is BuildKind.EMIT else options.output
    return BuildRequest(output, record, needs(num_parameters)), export


def _exporter(options: argparse.Namespace) -> tuple[Path, str, Exporter]:
    """The checkpoint's path, the profile's name, and what exports it."""
    from export.spec import DEFAULT_MAX_NUM_SEQS, ExportSpec
    from export.weight_format import WeightFormat

    gears = None if options.buckets is None else read_gears(options.buckets)
    planned_blocks, planned_size = (
        (None, None) if gears is None else (gears.num_blocks, gears.block_size)
    )
    spec = ExportSpec(
        checkpoint=options.checkpoint,
        target=options.target,
        name=options.name,
        block_size=_agreed("--block-size", options.block_size, planned_size),
        num_blocks=_agreed("--num-blocks", options.num_blocks, planned_blocks),
        max_model_len=options.max_model_len,
        max_num_seqs=_or(options.max_num_seqs, DEFAULT_MAX_NUM_SEQS),
        buckets=None if gears is None else gears.buckets,
        weights=None if options.weights is None else WeightFormat(options.weights),
        allow_unproven=options.allow_unproven,
        allow_unused_tensors=options.allow_unused_tensors,
        allow_clipping=options.allow_fp16_clipping,
        num_threads=_or(options.num_threads, 0),
    )

    def export(out_dir: Path, progress: Progress) -> ExportedGraph:
        progress("loading the export libraries")
        try:
            from export.build import export_step_graph
        except ImportError as error:
            raise missing_libraries(error) from error
        return export_step_graph(spec, out_dir, progress)

    return spec.path, spec.profile.name, export


def _agreed(flag: str, given: int | None, planned: int | None) -> int | None:
    """A number that both the command line and the plan may name, but not differently.

    Raises:
        ConfigError: They differ.
    """
    if given is not None and planned is not None and given != planned:
        raise ConfigError(f"{flag} is {given}, the file of --buckets was planned for {planned}")
    return planned if given is None else given


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


def _checkpoint_name(checkpoint: str) -> str:
    """The last part of a path, so that the bundle does not depend on the folder; or a Hub id."""
    if Path(checkpoint).exists():
        return Path(checkpoint).absolute().name
    return checkpoint
