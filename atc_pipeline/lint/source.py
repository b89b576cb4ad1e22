"""What a path given to the lint holds: the graph, and what a folder says of its build.

Owns no format: bundles and emitted folders are read by those who write them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from atc_pipeline.emit import EMIT_NAME, read_emitted
from atc_pipeline.lint.gears import Gears
from atc_pipeline.soc import SOCS
from omruntime.errors import ConfigError
from omruntime.manifest import MANIFEST_NAME, Manifest


@dataclass(frozen=True, slots=True)
class LintSource:
    """One graph.

    Attributes:
        gears: The folder's buckets; None for a plain file.
        soc: The chip the folder is for; None when it says none.
    """

    graph: Path
    gears: Gears | None = None
    soc: str | None = None


def find_source(path: Path) -> LintSource:
    """The graph that a path means.

    Raises:
        ConfigError: The folder holds no ONNX file, or more than one.
        BundleError: The folder's index is damaged.
    """
    if not path.is_dir():
        return LintSource(path)
    graph = _only_graph(path)
    if (path / EMIT_NAME).is_file():
        return _emitted(path, graph)
    if (path / MANIFEST_NAME).is_file():
        manifest = Manifest.read(path)
        return LintSource(graph, Gears.of_manifest(manifest), _chip(manifest.soc))
    return LintSource(graph)


def _emitted(folder: Path, graph: Path) -> LintSource:
    emitted = read_emitted(folder)
    kv = emitted.draft.kv
    programs = tuple((job.program.path, job.buckets) for job in emitted.jobs)
    return LintSource(
        graph, Gears(programs, kv.num_blocks, kv.block_size), _chip(emitted.draft.soc)
    )


def _chip(soc: str) -> str | None:
    """The target of a build, unless it is no chip."""
    return soc if soc in SOCS else None


def _only_graph(folder: Path) -> Path:
    found = sorted(folder.rglob("*.onnx"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError(
            f"{folder} holds no ONNX file; a bundle has one when it was built with --keep-onnx; "
            f"else give the graph, or the folder that `export-om build --emit` wrote"
        )
    names = ", ".join(str(path.relative_to(folder)) for path in found)
    raise ConfigError(f"{folder} holds several ONNX files ({names}); name the one to lint")
