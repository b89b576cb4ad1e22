"""Build a bundle once and use it again as long as nothing that shapes it has changed."""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from demo.processes import ROOT, run_to_end, tool_command
from omruntime.bundle_files import check_files
from omruntime.errors import BundleError
from omruntime.manifest import Manifest

_SOURCES = ("export", "atc_pipeline", "omruntime/om_file")
_CONTRACTS = ("errors", "buckets", "manifest", "bundle_files")
_TOOLS = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "gguf", "tokenizers")


Run = Callable[[Sequence[str], IO[str] | None], int]


def ensure_bundle(
    checkpoint: Path,
    output: Path,
    options: Sequence[str] = (),
    log: IO[str] | None = None,
    run: Run = run_to_end,
) -> bool:
    """Build `output` from `checkpoint` with the real command line, unless it is up to date.

    Args:
        options: More of the command line, which may name files; without a --target among them
            it is for the CPU.

    Returns:
        Whether it was built now.

    Raises:
        RuntimeError: The build failed; it said why on stderr, or in `log`.
    """
    inputs = _hash_inputs(checkpoint, options)
    stamp = output.with_name(output.name + ".inputs")
    if _is_whole(output) and stamp.exists() and stamp.read_text() == inputs:
        return False
    stamp.unlink(missing_ok=True)
    target = () if "--target" in options else ("--target", "cpu")
    command = [*tool_command("atc_pipeline.cli"), "build", str(checkpoint)]
    code = run([*command, "--output", str(output), *target, *options], log)
    if code != 0:
        raise RuntimeError(f"export-om build ended with exit code {code}")
    stamp.write_text(inputs)
    return True


def _is_whole(bundle: Path) -> bool:
    try:
        check_files(bundle, Manifest.read(bundle))
    except BundleError:
        return False
    return True


def _hash_inputs(checkpoint: Path, options: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for part in _inputs(checkpoint, options):
        digest.update(f"{len(part)} ".encode() + part)
    return digest.hexdigest()


def _inputs(checkpoint: Path, options: Sequence[str]) -> Iterator[bytes]:
    yield sys.version.encode()
    yield "\0".join(options).encode()
    for tool in _TOOLS:
        yield f"{tool} {importlib.metadata.version(tool)}".encode()
    paths = [path for name in _SOURCES for path in sorted((ROOT / name).rglob("*.py"))]
    paths += [ROOT / "omruntime" / f"{name}.py" for name in _CONTRACTS]
    named = [Path(option) for option in options if Path(option).is_file()]
    for path in [*paths, *named, checkpoint]:
        yield path.name.encode()
        yield path.read_bytes()
