"""From a draft and compiled OMs to a bundle: files in place, reports, manifest.

Owns what an Ascend bundle holds:

    programs/<name>.om        with programs/weight/ when the OMs share constants
    tokenizer/, reports/      as the export wrote them; reports/build.json names the OMs
    programs/step.onnx, .weights   only with --keep-onnx

The ONNX graph is left out by default: it takes as much room as the OMs' weights, and only
`export-om verify` would read it, to replay the recorded answers in ONNX Runtime. The parity gate
ran on it when the bundle was built.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from atc_pipeline.atc.compile import WEIGHT_FOLDER, find_products, om_name
from atc_pipeline.atc.jobs import CompileJob
from atc_pipeline.atc.options import ExternalWeight
from atc_pipeline.bundle import BUILD_REPORT_PATH, SIMULATED_KEY, describe_file, hash_file
from atc_pipeline.bundle_inspect import read_warnings
from atc_pipeline.draft import DRAFT_NAME, GRAPH_PATH, GRAPH_WEIGHTS_PATH, draft_program
from atc_pipeline.om_check import find_om_problems, find_weight_file_problems
from atc_pipeline.om_facts import ProgramFacts, read_program_facts
from atc_pipeline.om_weights import WeightReport
from omruntime.errors import BundleError
from omruntime.manifest import MANIFEST_NAME, FileEntry, Manifest, ProgramSpec

REFERENCE_ROLE = "reference"
TOOLKIT_KEY = "tool.cann"


@dataclass(frozen=True, slots=True)
class AssemblySettings:
    """How to put a bundle together.

    Attributes:
        is_simulated: Whether the OMs may, and then must, be the simulator's.
        is_strict: Whether operators on the AI CPU end the build.
    """

    is_simulated: bool
    is_strict: bool = False
    keeps_onnx: bool = False


@dataclass(frozen=True, slots=True)
class Assembled:
    """A bundle that lies in its folder, not published yet."""

    manifest: Manifest
    warnings: tuple[str, ...]
    weights: WeightReport


def check_om(job: CompileJob, folder: Path, settings: AssemblySettings) -> ProgramFacts:
    """Read the OM that a job made in `folder` and compare it with the job.

    Raises:
        BundleError: It cannot be read, differs, or, when strict, leaves the AI Core.
    """
    facts = read_program_facts(folder / om_name(job))
    problems = find_om_problems(job, facts)
    problems += find_weight_file_problems(facts, folder / WEIGHT_FOLDER)
    if facts.is_simulated != settings.is_simulated:
        got, wanted = ("the simulator", "atc") if facts.is_simulated else ("atc", "the simulator")
        hint = "with" if facts.is_simulated else "without"
        problems.insert(
            0, f"was made by {got}, wanted one of {wanted}; emit again {hint} --atc simatc"
        )
    if settings.is_strict:
        problems += _ai_cpu_warnings(facts)
    if problems:
        lines = "".join(f"\n  it {problem}" for problem in problems)
        raise BundleError(f"{folder / om_name(job)} is not what was asked for:{lines}")
    return facts


def assemble(
    folder: Path,
    draft: Manifest,
    jobs: Mapping[CompileJob, Path],
    settings: AssemblySettings,
) -> Assembled:
    """Turn a draft's folder into a bundle.

    Args:
        folder: What the export left, with its draft.
        jobs: Each job and the folder that holds what it made, which is gone afterwards.

    Raises:
        BundleError: An OM cannot be read or is not what its job asked for, or two OMs do not
            belong together.
    """
    facts = {job: check_om(job, made, settings) for job, made in jobs.items()}
    weights = _weigh(jobs, facts)
    for job, made in jobs.items():
        _move_products(job, made, folder / "programs")
        shutil.rmtree(made)
    warnings = read_warnings(folder) + tuple(
        f"programs/{om_name(job)} {line}" for job in jobs for line in _ai_cpu_warnings(facts[job])
    )
    _write_report(folder, facts, warnings, weights)
    if not settings.keeps_onnx:
        for name in (GRAPH_PATH, GRAPH_WEIGHTS_PATH):
            (folder / name).unlink()
    (folder / DRAFT_NAME).unlink()
    manifest = _manifest(folder, draft, facts, settings)
    (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return Assembled(manifest, warnings, weights)


def _ai_cpu_warnings(facts: ProgramFacts) -> list[str]:
    if not facts.ai_cpu_operators:
        return []
    names = ", ".join(facts.ai_cpu_operators)
    return [f"runs operators on the AI CPU, which is slow: {names}"]


def _weigh(
    jobs: Mapping[CompileJob, Path], facts: Mapping[CompileJob, ProgramFacts]
) -> WeightReport:
    if all(job.options.external_weight is ExternalWeight.INSIDE for job in jobs):
        return WeightReport.inside([facts[job].weight_bytes or 0 for job in jobs])
    return WeightReport.of_files(
        [
            {name: (made / name).stat().st_size for name in find_products(job, made)[1:]}
            for job, made in jobs.items()
        ]
    )


def _move_products(job: CompileJob, made: Path, programs: Path) -> None:
    """Move an OM and its weight files; a file that is there already must be the same.

    Raises:
        BundleError: Two OMs use one name for different constants.
    """
    (programs / WEIGHT_FOLDER).mkdir(exist_ok=True)
    for name in find_products(job, made):
        target = programs / name
        if not target.exists():
            shutil.move(made / name, target)
        elif hash_file(target) != hash_file(made / name):
            raise BundleError(
                f"{om_name(job)} and another OM use {name} for different constants, so they "
                f"cannot lie in one bundle; build with --separate-weights"
            )
    if not any((programs / WEIGHT_FOLDER).iterdir()):
        (programs / WEIGHT_FOLDER).rmdir()


def _write_report(
    folder: Path,
    facts: Mapping[CompileJob, ProgramFacts],
    warnings: tuple[str, ...],
    weights: WeightReport,
) -> None:
    programs = [
        {
            "path": job.program.path,
            "num_gears": len(job.gears),
            "weight_bytes": found.weight_bytes,
            "memory_bytes": found.memory_bytes,
            "ai_cpu_operators": list(found.ai_cpu_operators),
            "atc_version": found.atc_version,
        }
        for job, found in facts.items()
    ]
    report = {"warnings": list(warnings), "programs": programs, "weights": weights.to_plain()}
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    (folder / BUILD_REPORT_PATH).write_text(text, encoding="utf-8")


def _manifest(
    folder: Path,
    draft: Manifest,
    facts: Mapping[CompileJob, ProgramFacts],
    settings: AssemblySettings,
) -> Manifest:
    programs = [job.program for job in facts]
    if settings.keeps_onnx:
        programs.append(_reference_program(draft))
    provenance = dict(draft.provenance) | {TOOLKIT_KEY: _toolkit_version(facts)}
    if settings.is_simulated:
        provenance[SIMULATED_KEY] = "true"
    return dataclasses.replace(
        draft,
        programs=tuple(programs),
        files=_describe_files(folder, draft, settings.keeps_onnx),
        provenance=provenance,
    )


def _toolkit_version(facts: Mapping[CompileJob, ProgramFacts]) -> str:
    """The compiler's version as the OMs give it.

    Raises:
        BundleError: They come from several compilers.
    """
    versions = {found.atc_version: job for job, found in facts.items()}
    if len(versions) > 1:
        said = ", ".join(f"{om_name(job)} by {version}" for version, job in versions.items())
        raise BundleError(f"the programs were compiled by several versions of atc: {said}")
    return next(iter(versions)) or "unknown"


def _reference_program(draft: Manifest) -> ProgramSpec:
    """The symbolic graph, for replays; no bucket of it is served."""
    return dataclasses.replace(draft_program(draft), role=REFERENCE_ROLE, buckets=())


def _describe_files(folder: Path, draft: Manifest, keeps_onnx: bool) -> tuple[FileEntry, ...]:
    known = {entry.path: entry for entry in draft.files if entry.path != BUILD_REPORT_PATH}
    if not keeps_onnx:
        del known[GRAPH_PATH], known[GRAPH_WEIGHTS_PATH]
    made = [
        path.relative_to(folder).as_posix()
        for path in sorted((folder / "programs").rglob("*"))
        if path.is_file()
    ]
    for name in [*made, BUILD_REPORT_PATH]:
        if name not in known:
            known[name] = describe_file(folder, name)
    return tuple(known[name] for name in sorted(known))
