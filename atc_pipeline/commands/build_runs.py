"""The runs of `export-om build`: supervised, cleaned up after, and told about.

Owns what runs in which process, and the closing lines. The export runs in a child that can be
ended at any moment; `atc` runs in processes of its own, watched from here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from atc_pipeline.ascend_build import AscendBuild
from atc_pipeline.assemble import Assembled, AssemblySettings
from atc_pipeline.atc.jobs import JobSettings
from atc_pipeline.build import (
    BuildNeeds,
    BuildRequest,
    Exporter,
    Lint,
    fill_bundle,
    fill_draft,
    named_shortages,
    require_room,
)
from atc_pipeline.building_folder import BuildingFolder, building_folder
from atc_pipeline.bundle_inspect import summarise
from atc_pipeline.commands.build_ascend import compile_in_place, emit_in_place
from atc_pipeline.commands.printed_warnings import print_warnings
from atc_pipeline.emit import EMITTED, SCRIPT_NAME, require_nothing_compiled
from atc_pipeline.exit_codes import run_reported
from atc_pipeline.from_compiled import bundle_from_compiled, compiled_bytes, require_compiled
from atc_pipeline.progress import StageProgress
from atc_pipeline.supervise import run_in_child, stop_signals


@dataclass(frozen=True, slots=True)
class Drafting:
    """How a draft is made: the exporter, the look at what it made, and how errors are told."""

    export: Exporter
    lint: Lint
    show_traceback: bool


def build_supervised(request: BuildRequest, export: Exporter, show_traceback: bool) -> int:
    """Build for a target without a compiler; returns the exit code.

    Raises:
        OmError: The output is taken, there is too little room, or a signal ended the child.
        StopRequested: A stop signal came; the child and its files are gone.
    """

    def fill() -> int:
        return run_reported(lambda: _fill(building, request, export), show_traceback)

    with stop_signals(), building_folder(request.output) as building:
        require_room(request.needs, building.output.parent)
        return run_in_child(fill)


def build_ascend_supervised(request: BuildRequest, drafting: Drafting, build: AscendBuild) -> int:
    """Export in a child, whose memory is free again when the compiler runs; compile from here.

    Raises:
        OmError: As `build_supervised`, or the compiler failed.
        StopRequested: A stop signal came; the compiler, the child and their files are gone.
    """
    with stop_signals(), building_folder(request.output) as building:
        require_room(request.needs, building.output.parent)
        code = _draft_in_child(building, request, drafting)
        if code != 0:
            return code
        with StageProgress(sys.stderr, label="compile ") as progress:
            compiled = compile_in_place(building, build, progress)
    _print_bundle(request.output, compiled.assembled)
    print(f"programs: {compiled.num_compiled} compiled, {compiled.num_cached} from the cache")
    return 0


def emit_supervised(
    request: BuildRequest, drafting: Drafting, settings: JobSettings, is_simulated: bool
) -> int:
    """The same up to the compiler, which another machine runs.

    Raises:
        OmError: As `build_supervised`.
        StopRequested: A stop signal came; the child and its files are gone.
    """
    require_nothing_compiled(request.output)
    with stop_signals(), building_folder(request.output, EMITTED) as building:
        require_room(request.needs, building.output.parent)
        code = _draft_in_child(building, request, drafting)
        if code != 0:
            return code
        with StageProgress(sys.stderr, label="emit ") as progress:
            emitted = emit_in_place(building, settings, is_simulated, progress)
    label, where = ("SIMULATED ", "") if is_simulated else ("", ", on a machine with CANN")
    print(f"{request.output}: {label}{len(emitted.jobs)} programs to compile")
    print(f"next{where}: sh {request.output}/{SCRIPT_NAME}")
    return 0


def bundle_compiled(source: Path, output: Path, is_strict: bool, keeps_onnx: bool) -> int:
    """Make a bundle of an emitted folder whose programs were compiled; returns the exit code.

    Raises:
        BundleError: The folder or a program is not what was emitted and asked for.
        OmError: The output is taken, or there is too little room.
        StopRequested: A stop signal came; nothing was published.
    """
    with (
        stop_signals(),
        building_folder(output) as building,
        named_shortages(building.path),
        StageProgress(sys.stderr) as progress,
    ):
        emitted = require_compiled(source, progress)
        require_room(BuildNeeds(0, compiled_bytes(source, emitted)), building.output.parent)
        progress("checking, copying and hashing programs")
        settings = AssemblySettings(emitted.is_simulated, is_strict, keeps_onnx)
        assembled = bundle_from_compiled(source, emitted, building.path, settings)
        progress("publishing")
        building.publish()
    _print_bundle(output, assembled)
    return 0


def _fill(building: BuildingFolder, request: BuildRequest, export: Exporter) -> int:
    with StageProgress(sys.stderr) as progress:
        manifest, warnings = fill_bundle(building, request.record, export, progress)
    print_warnings(warnings)
    print(f"{request.output}: {summarise(manifest)}")
    return 0


def _draft_in_child(building: BuildingFolder, request: BuildRequest, drafting: Drafting) -> int:
    def fill() -> int:
        with StageProgress(sys.stderr) as progress:
            fill_draft(building.path, request.record, drafting.export, drafting.lint, progress)
        return 0

    return run_in_child(lambda: run_reported(fill, drafting.show_traceback))


def _print_bundle(output: Path, assembled: Assembled) -> None:
    print_warnings(assembled.warnings)
    print(f"{output}: {summarise(assembled.manifest)}")
    print(assembled.weights.describe())
