"""Checks of a bundle that need nothing but the bundle: hashes, cover, KV sizes, parity report.

Running the program again is the exporter's `replay`; the quick check at a server's start is
`omruntime/bundle_files.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atc_pipeline.atc.compile import WEIGHT_FOLDER
from atc_pipeline.atc.jobs import job_of_program
from atc_pipeline.bundle import hash_file, is_simulated, list_files
from atc_pipeline.om_check import find_shape_problems, find_weight_file_problems
from atc_pipeline.om_facts import read_program_facts
from omruntime.bundle_files import bundle_path, find_file_problems
from omruntime.errors import BundleError, OmError
from omruntime.manifest import MANIFEST_NAME, Manifest

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class VerifiedBundle:
    """A bundle in which every file is what the manifest says.

    Attributes:
        total_bytes: Of all files but the manifest.
    """

    manifest: Manifest
    num_files: int
    total_bytes: int


def verify_bundle(bundle: Path, progress: Callable[[str], None]) -> VerifiedBundle:
    """Check a bundle completely, without running it.

    Args:
        bundle: The folder.
        progress: Called with one line at the start of each stage.

    Raises:
        BundleError: The message lists all that is wrong.
    """
    progress("reading the manifest")
    manifest = Manifest.read(bundle)
    problems = find_file_problems(bundle, manifest)
    progress("hashing files")
    problems += _find_hash_problems(bundle, manifest)
    progress("checking buckets and KV sizes")
    problems += _find_fact_problems(manifest)
    progress("checking compiled programs")
    problems += _find_program_problems(bundle, manifest)
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise BundleError(f"the bundle {bundle} does not verify:{lines}")
    total_bytes = sum(entry.size_bytes for entry in manifest.files)
    return VerifiedBundle(manifest, len(manifest.files), total_bytes)


def _find_hash_problems(bundle: Path, manifest: Manifest) -> list[str]:
    problems = []
    for entry in manifest.files:
        path = bundle_path(bundle, entry.path)
        if path.is_file() and path.stat().st_size == entry.size_bytes:
            got = hash_file(path)
            if got != entry.sha256:
                problems.append(f"{entry.path}: sha256 {got}, the manifest says {entry.sha256}")
    listed = {entry.path for entry in manifest.files}
    if len(listed) != len(manifest.files):
        problems.append(f"{MANIFEST_NAME}: lists a file twice")
    problems += [f"{n}: not in the manifest" for n in list_files(bundle) if n not in listed]
    return problems


def _find_program_problems(bundle: Path, manifest: Manifest) -> list[str]:
    """What each OM says of itself against the manifest."""
    problems = []
    for program in manifest.programs:
        path = bundle_path(bundle, program.path)
        if path.suffix != ".om" or not path.is_file():
            continue
        try:
            job = job_of_program(program, manifest.kv, manifest.soc)
            facts = read_program_facts(path)
        except OmError as error:
            problems.append(f"{program.path}: {error}")
            continue
        found = find_shape_problems(job, facts)
        found += find_weight_file_problems(facts, path.with_name(WEIGHT_FOLDER))
        if facts.is_simulated != is_simulated(manifest):
            found.append("and the manifest differ in whether it is simulated")
        problems += [f"{program.path}: it {problem}" for problem in found]
    return problems


def _find_fact_problems(manifest: Manifest) -> list[str]:
    model, kv, parity = manifest.model, manifest.kv, manifest.parity
    problems = []
    try:
        manifest.bucket_table().require_cover(model.max_num_seqs, model.max_model_len)
    except BundleError as error:
        problems.append(str(error))
    values = model.num_layers * 2 * model.num_kv_heads * model.head_dim * kv.block_size
    item_bytes = _ITEM_BYTES.get(kv.dtype)
    if item_bytes is None:
        problems.append(f"kv.dtype is {kv.dtype!r}, wanted one of {', '.join(_ITEM_BYTES)}")
    elif kv.bytes_per_block != values * item_bytes:
        problems.append(
            f"kv.bytes_per_block is {kv.bytes_per_block}, the model's facts give "
            f"{values * item_bytes}"
        )
    if parity.max_abs_logits_diff > parity.tolerance:
        problems.append(
            f"parity: logits differ by {parity.max_abs_logits_diff}, "
            f"the tolerance is {parity.tolerance}"
        )
    return problems
