"""`export-om verify`: a bundle's hashes, its covering buckets, and its answers again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from atc_pipeline.build import Progress
from atc_pipeline.bundle_inspect import summarise
from atc_pipeline.commands.arguments import add_number, add_traceback, missing_libraries
from atc_pipeline.draft import GRAPH_PATH
from atc_pipeline.progress import StageProgress
from atc_pipeline.resources import mib
from atc_pipeline.supervise import stop_signals
from atc_pipeline.verify import verify_bundle
from omruntime.command_parser import Commands
from omruntime.errors import ConfigError
from omruntime.manifest import Manifest

CompareOnCard: TypeAlias = Callable[[Manifest], str]
OpenCard: TypeAlias = Callable[[argparse.Namespace, Progress], CompareOnCard | None]


def add_parser(commands: Commands) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "verify", help="check a bundle: hashes, buckets, and its answers again", allow_abbrev=False
    )
    parser.set_defaults(command=run_verify)
    parser.add_argument("bundle", type=Path)
    parser.add_argument(
        "--checkpoint", help="also compare with this checkpoint; needs the export libraries"
    )
    parser.add_argument(
        "--reference",
        choices=["npu"],
        help="also run --checkpoint in float16 on an Ascend card, through torch-npu",
    )
    add_number(parser, "--num-threads", 0, "threads of the libraries; 0 leaves it to them")
    add_traceback(parser)


def run_verify(options: argparse.Namespace, open_card: OpenCard | None = None) -> int:
    """Check and print; `open_card` finds the card of `--reference npu`, or raises."""
    # So that SIGTERM, too, removes what loading a checkpoint puts into the temporary folder.
    with stop_signals(), StageProgress(sys.stderr) as progress:
        compare_on_npu = (open_card or _open_npu)(options, progress)
        verified = verify_bundle(options.bundle, progress)
        found = [_replay(options, verified.manifest, progress)]
        if options.checkpoint is not None:
            found.append(_recheck(options, verified.manifest, progress))
        if compare_on_npu is not None:
            found.append(compare_on_npu(verified.manifest))
    print(f"{options.bundle}: {summarise(verified.manifest)}")
    print(f"files: {verified.num_files} of {mib(verified.total_bytes)} together, unchanged")
    print("\n".join(found))
    return 0


def _replay(options: argparse.Namespace, manifest: Manifest, progress: Progress) -> str:
    """Run the program against the recorded reference; returns what was found, in words."""
    bundle, num_threads = options.bundle, options.num_threads
    if num_threads < 0:
        raise ConfigError(f"num_threads is {num_threads}, wanted 0 or more")
    if not _keeps_graph(manifest):
        return (
            "replay: left out, as the bundle holds compiled programs alone; "
            "build it with --keep-onnx to have its answers replayed"
        )
    progress("replaying the recorded answers in ONNX Runtime")
    try:
        from export.replay import replay_bundle
    except ImportError as error:
        raise missing_libraries(error) from error
    report = replay_bundle(bundle, manifest, num_threads)
    return (
        f"replay: {report.num_tokens} greedy tokens equal to the checkpoint's "
        f"({report.num_near_ties} near ties), logits within {report.max_abs_logits_diff:.2g}"
    )


def _recheck(options: argparse.Namespace, manifest: Manifest, progress: Progress) -> str:
    """Run the whole parity gate against the checkpoint; returns what was found, in words."""
    if not _keeps_graph(manifest):
        return _parity_left_out(options)
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
        raise missing_libraries(error) from error
    parity = recheck_bundle(options.bundle, manifest, spec, progress)
    return (
        f"parity: {parity.num_cases} cases and {parity.num_greedy_tokens} greedy tokens equal to "
        f"the checkpoint's, logits within {parity.max_abs_logits_diff:.2g} "
        f"(tolerance {parity.tolerance:.2g})"
    )


def _parity_left_out(options: argparse.Namespace) -> str:
    """What to say of a bundle of compiled programs alone, before anything is loaded."""
    why = "the bundle holds compiled programs alone, so no graph can be compared with --checkpoint"
    if options.reference is None:
        raise ConfigError(f"{options.bundle}: {why}; build it with --keep-onnx")
    return f"parity: left out, as {why}; build it with --keep-onnx to have it compared"


def _keeps_graph(manifest: Manifest) -> bool:
    return GRAPH_PATH in {program.path for program in manifest.programs}


def _open_npu(options: argparse.Namespace, progress: Progress) -> CompareOnCard | None:
    """Find the card of `--reference npu` before anything costly; returns how to compare on it."""
    if options.reference is None:
        return None
    if options.checkpoint is None:
        raise ConfigError("--reference npu runs a checkpoint: name it with --checkpoint")
    progress("looking for a card")
    try:
        from export.npu_device import open_npu
        from export.npu_reference import BundleAndCheckpoint, compare_bundle
    except ImportError as error:
        raise missing_libraries(error) from error
    device = open_npu()

    def compare(manifest: Manifest) -> str:
        sha256 = manifest.provenance.get("checkpoint_sha256", "unknown")
        given = BundleAndCheckpoint(options.bundle, options.checkpoint, sha256)
        return compare_bundle(given, device, progress).as_text()

    return compare
