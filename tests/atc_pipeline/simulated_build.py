"""Builds of the tiny step graph with simatc, in this process."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from atc_pipeline.ascend_build import AscendBuild, CompiledBundle, compile_bundle
from atc_pipeline.assemble import Assembled, AssemblySettings
from atc_pipeline.atc.find import find_atc
from atc_pipeline.atc.jobs import JobSettings
from atc_pipeline.building_folder import building_folder
from atc_pipeline.bundle import write_manifest
from atc_pipeline.draft import DRAFT_NAME
from atc_pipeline.emit import EMITTED, write_emitted
from atc_pipeline.from_compiled import bundle_from_compiled, require_compiled
from tests.atc_pipeline.fake_ascend import Notes
from tests.atc_pipeline.tiny_step_graph import RECORD, tiny_ascend_export

SIMATC = find_atc("simatc", {})


def settings(cache: Path | None = None, **changes: object) -> AscendBuild:
    """How to build; `changes` replaces fields."""
    build = AscendBuild(SIMATC, JobSettings(), 2, 120, cache)
    return dataclasses.replace(build, **changes)  # type: ignore[arg-type]


def build_simulated(
    output: Path, build: AscendBuild, tokenizer: bytes = b"{}", notes: Notes | None = None
) -> CompiledBundle:
    """Export, compile, assemble and publish."""
    with building_folder(output) as building:
        result = tiny_ascend_export(building.path, lambda stage: None)
        (building.path / "tokenizer" / "tokenizer.json").write_bytes(tokenizer)
        write_manifest(building.path, result, RECORD, name=DRAFT_NAME)
        compiled = compile_bundle(building.path, building.output, build, notes or Notes())
        building.publish()
    return compiled


def emit(output: Path, jobs: JobSettings | None = None, *, is_simulated: bool = True) -> Path:
    """Export and emit."""
    with building_folder(output, EMITTED) as building:
        result = tiny_ascend_export(building.path, lambda stage: None)
        write_manifest(building.path, result, RECORD, name=DRAFT_NAME)
        write_emitted(building.path, jobs or JobSettings(), is_simulated)
        building.publish()
    return output


def take_compiled(source: Path, output: Path, *, keeps_onnx: bool = False) -> Assembled:
    """Make a bundle of an emitted folder."""
    with building_folder(output) as building:
        emitted = require_compiled(source, lambda stage: None)
        wanted = AssemblySettings(emitted.is_simulated, keeps_onnx=keeps_onnx)
        assembled = bundle_from_compiled(source, emitted, building.path, wanted)
        building.publish()
    return assembled
