"""The draft of a bundle: a manifest over the ONNX step graph, before there are OMs.

Owns its file. `build.py` writes one after the export; the compilation of a build, an emitted
folder and `--from-compiled` all start from one.
"""

from __future__ import annotations

from pathlib import Path

from atc_pipeline.cache import BuildIdentity
from omruntime.errors import BundleError
from omruntime.manifest import FileEntry, Manifest, ProgramSpec

DRAFT_NAME = "draft.json"
GRAPH_PATH = "programs/step.onnx"
GRAPH_WEIGHTS_PATH = "programs/step.weights"


def read_draft(folder: Path) -> Manifest:
    """The manifest over what an export left in `folder`.

    Raises:
        BundleError: There is none, or it is no draft of this omserve.
    """
    path = folder / DRAFT_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(
            f"cannot read {path}: {error}; wanted a folder that `export-om build --emit` wrote"
        ) from error
    draft = Manifest.from_json(text, str(path))
    steps = [program for program in draft.programs if program.role == "step"]
    if [program.path for program in steps] != [GRAPH_PATH]:
        raise BundleError(f"{path}: wanted one step program {GRAPH_PATH}; emit the folder again")
    for name in (GRAPH_PATH, GRAPH_WEIGHTS_PATH):
        _file_entry(draft, name)
    return draft


def draft_program(draft: Manifest) -> ProgramSpec:
    """The symbolic step program."""
    return next(program for program in draft.programs if program.path == GRAPH_PATH)


def weight_bytes(draft: Manifest) -> int:
    """Size of the graph's weights."""
    return _file_entry(draft, GRAPH_WEIGHTS_PATH).size_bytes


def build_identity(draft: Manifest, toolkit_version: str, is_simulated: bool) -> BuildIdentity:
    """What decides the bytes of a compilation of this draft."""
    graph, weights = (_file_entry(draft, name) for name in (GRAPH_PATH, GRAPH_WEIGHTS_PATH))
    return BuildIdentity(graph.sha256, weights.sha256, toolkit_version, is_simulated)


def _file_entry(draft: Manifest, name: str) -> FileEntry:
    for entry in draft.files:
        if entry.path == name:
            return entry
    raise BundleError(f"{DRAFT_NAME} does not list {name}; export again")
