"""The full parity gate again, over a finished bundle and its checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from export.checkpoint import load_model, load_tokenizer, open_checkpoint
from export.checkpoint_files import find_checkpoint
from export.facts import step_shape
from export.kept_program import open_kept_program
from export.parity import check_parity, run_reference, tolerance_for
from export.parity_input import parity_input
from export.profiles import OPENVINO, profile_named
from export.spec import ExportSpec
from export.weight_format import WeightFormat
from omruntime.errors import BundleError
from omruntime.manifest import Manifest, ParitySummary


def recheck_bundle(
    bundle: Path, manifest: Manifest, spec: ExportSpec, progress: Callable[[str], None]
) -> ParitySummary:
    """Hold a bundle's program against the checkpoint that it was built from.

    Args:
        bundle: The folder, its files verified.
        manifest: Its manifest.
        spec: Names the checkpoint; the limits and buckets are the bundle's.
        progress: Called with one line at the start of each stage.

    Raises:
        BundleError: It was built from another checkpoint.
        ConfigError: The checkpoint's files are not whole.
        ParityError: The program does not reproduce the checkpoint.
    """
    progress("checking the checkpoint's files")
    files = find_checkpoint(spec.checkpoint)
    wanted, got = manifest.provenance.get("checkpoint_sha256"), files.sha256()
    if got != wanted:
        raise BundleError(
            f"the bundle was built from another checkpoint: its files have sha256 {wanted}, "
            f"those of {spec.checkpoint} {got}"
        )
    with open_checkpoint(files, spec) as checkpoint:
        progress("loading the weights")
        tokenizer = load_tokenizer(checkpoint)
        model = load_model(checkpoint, spec)
        profile = profile_named(manifest.profile)
        shape = step_shape(model, manifest.kv.block_size, profile)
        table = manifest.bucket_table()
        given = replace(
            parity_input(tokenizer, shape, table, manifest.model.max_model_len),
            weights=WeightFormat(manifest.model.dtype) if profile is OPENVINO else None,
        )
        progress("running the checkpoint itself")
        reference = run_reference(model, given)
        tolerance = tolerance_for(model, given, reference, allows_overflow=True)
        progress("loading the graph into ONNX Runtime")
        session = open_kept_program(bundle, manifest, spec.num_threads)
        report = check_parity(session, given, reference, tolerance, progress)
    return report.summary()
