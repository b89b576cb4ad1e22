"""What `export-om build` does for Ascend chips: settings out of flags, and its stages.

Owns the way from flags to settings. Compiling and assembling stand in their own modules.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from pathlib import Path

from atc_pipeline.ascend_build import AscendBuild, CompiledBundle, compile_bundle
from atc_pipeline.atc.find import ATC_VARIABLE, SIMATC, AtcTool, find_atc
from atc_pipeline.atc.jobs import JobSettings, Layout, plan_jobs
from atc_pipeline.atc.limits import default_num_jobs
from atc_pipeline.atc.options import AtcOptions, parse_atc_flags
from atc_pipeline.build import Lint, named_shortages
from atc_pipeline.building_folder import BuildingFolder
from atc_pipeline.bundle import ExportedGraph
from atc_pipeline.cache import default_cache_folder
from atc_pipeline.commands.arguments import missing_libraries
from atc_pipeline.commands.build_options import DEFAULT_TIMEOUT_S
from atc_pipeline.draft import GRAPH_PATH
from atc_pipeline.emit import Emitted, write_emitted
from atc_pipeline.progress import StageProgress
from omruntime.errors import AtcError, ConfigError


def job_settings(options: argparse.Namespace) -> tuple[JobSettings, bool]:
    """How programs are laid out, and whether the simulator is to make them.

    Raises:
        ConfigError: A flag for atc is wrong, or --emit names a compiler of this machine.
    """
    flags = parse_atc_flags(tuple(options.atc_flag or ()))
    # Before the export, which takes minutes: flags are refused here as atc would refuse them.
    AtcOptions("step.onnx", "step", options.target, "input_ids:1,1", extra=flags)
    if options.emit is not None and options.atc not in (None, SIMATC):
        raise ConfigError(
            f"--atc is {options.atc!r}, but --emit leaves the compiler to the other machine; "
            f"only {SIMATC} may be named, which marks the folder as simulated"
        )
    settings = JobSettings(
        layout=Layout(options.layout or Layout.PER_PHASE.value),
        share_weights=not options.separate_weights,
        extra_flags=flags,
    )
    return settings, SIMATC in (options.atc, os.environ.get(ATC_VARIABLE))


def ascend_build(options: argparse.Namespace) -> AscendBuild:
    """How to compile on this machine.

    Raises:
        ConfigError: A flag is wrong.
        AtcError: There is no compiler.
    """
    settings, _ = job_settings(options)
    cache = None if options.no_cache else options.cache_dir or default_cache_folder(os.environ)
    return AscendBuild(
        tool=_find_atc(options.atc),
        jobs=settings,
        num_jobs=default_num_jobs() if options.jobs is None else options.jobs,
        timeout_s=DEFAULT_TIMEOUT_S if options.atc_timeout_s is None else options.atc_timeout_s,
        cache_folder=cache,
        is_strict=options.strict,
        keeps_onnx=options.keep_onnx,
        keeps_intermediates=options.keep_intermediates,
    )


def _find_atc(named: str | None) -> AtcTool:
    try:
        return find_atc(named, os.environ)
    except AtcError as error:
        raise AtcError(
            f"{error}; without CANN on this machine, --emit DIR instead of --output writes a "
            f"folder that another machine compiles"
        ) from error


def compile_in_place(
    building: BuildingFolder, build: AscendBuild, progress: StageProgress
) -> CompiledBundle:
    """Compile the draft in the building folder and publish the bundle.

    Raises:
        OmError: As `compile_bundle`, or disk space ran out.
    """
    with named_shortages(building.path):
        compiled = compile_bundle(building.path, building.output, build, progress)
        progress("publishing")
        building.publish()
    return compiled


def emit_in_place(
    building: BuildingFolder, settings: JobSettings, is_simulated: bool, progress: StageProgress
) -> Emitted:
    """Complete the draft in the building folder to an emitted one and publish it.

    Raises:
        OmError: As `write_emitted`, or disk space ran out.
    """
    with named_shortages(building.path):
        progress("writing command lines")
        emitted = write_emitted(building.path, settings, is_simulated)
        progress("publishing")
        building.publish()
    return emitted


def lint_for_atc(target: str, settings: JobSettings, is_strict: bool) -> Lint:
    """The check of an exported graph before the compiler sees it."""

    def lint(folder: Path, graph: ExportedGraph) -> tuple[str, ...]:
        jobs = plan_jobs(graph.program, graph.kv, target, settings)
        try:
            from atc_pipeline.lint.check import lint_model
            from atc_pipeline.lint.gears import Gears
        except ImportError as error:
            raise missing_libraries(error) from error
        programs = tuple((job.program.path, job.buckets) for job in jobs)
        gears = Gears(programs, graph.kv.num_blocks, graph.kv.block_size)
        report = lint_model(folder / GRAPH_PATH, target, gears)
        report.require_clean(is_strict)
        # Layers are alike: one line for all nodes with the same reason.
        counts = Counter((f.rule, f.op_type, f.reason) for f in report.warnings)
        return tuple(
            f"lint: {reason} [{rule}, {op_type or 'model'}, {count} times]"
            for (rule, op_type, reason), count in sorted(counts.items())
        )

    return lint
