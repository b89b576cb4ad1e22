"""The content of a bundle: hashes, provenance and the manifest over what an export wrote.

Owns what the manifest says beyond the export's own facts. Where the folder lies and how it gets
its name is `building_folder.py`; checking a bundle is `verify.py`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from omruntime.errors import ConfigError, ExportError
from omruntime.manifest import (
    FORMAT_VERSION,
    GRAPH_CONTRACT,
    MANIFEST_NAME,
    FileEntry,
    KVSpec,
    Manifest,
    ModelFacts,
    ParitySummary,
    ProgramSpec,
)

BUILD_REPORT_PATH = "reports/build.json"
# In a manifest's provenance, with the value "true": the programs are the simulator's.
SIMULATED_KEY = "simulated"
# Of the manifest's kv_identity; raise it when its ingredients change.
_KV_IDENTITY_VERSION = "1"
_READ_BYTES = 1 << 20


class ExportedGraph(Protocol):
    """What the bundle needs to know of an export; `export/result.py` says it in full."""

    @property
    def model(self) -> ModelFacts:
        """What serving needs to know about the checkpoint."""

    @property
    def kv(self) -> KVSpec:
        """The shape of the KV cache."""

    @property
    def program(self) -> ProgramSpec:
        """The step program; its path is relative to the folder."""

    @property
    def files(self) -> tuple[str, ...]:
        """Every file written, relative to the folder, sorted."""

    @property
    def kv_identity_inputs(self) -> Mapping[str, str]:
        """All that decides what a cached key or value is."""

    @property
    def checkpoint_sha256(self) -> str:
        """Over the checkpoint's weight and config files."""

    @property
    def tool_versions(self) -> Mapping[str, str]:
        """Package name to version, of what shaped the graph."""

    @property
    def parity(self) -> ParitySummary:
        """What the parity gate measured."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the builder of the bundle should read."""


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """What the manifest says about the build itself; holds no path and no clock.

    Attributes:
        target: What the bundle is built for; the manifest's SoC.
        checkpoint_name: Last part of the checkpoint's path, or the Hub id.
        flags: Switches that changed what the export accepts, sorted.
        source_date: SOURCE_DATE_EPOCH in seconds; None leaves the date out.
        profile: How the target's graphs are lowered.
    """

    target: str
    checkpoint_name: str
    flags: tuple[str, ...] = ()
    source_date: int | None = None
    profile: str = "cpu"


def write_manifest(
    folder: Path,
    graph: ExportedGraph,
    record: BuildRecord,
    *,
    name: str = MANIFEST_NAME,
    warnings: tuple[str, ...] = (),
) -> Manifest:
    """Write the build report and the manifest over the files that an export left in `folder`.

    Args:
        name: Of the manifest's file; a draft has another one than a bundle.
        warnings: Beside those of the export.

    Raises:
        ExportError: The folder holds other files than the export listed.
    """
    report = {"warnings": [*graph.warnings, *warnings]}
    path = folder / BUILD_REPORT_PATH
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    listed = sorted({*graph.files, BUILD_REPORT_PATH})
    found = list_files(folder)
    if listed != found:
        odd = sorted(set(listed) ^ set(found))
        raise ExportError(f"the export's file list and its folder differ in {', '.join(odd)}")
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        graph_contract=GRAPH_CONTRACT,
        profile=record.profile,
        soc=record.target,
        kv_identity=hash_kv_identity(graph.kv_identity_inputs, graph.kv, record.profile),
        model=graph.model,
        kv=graph.kv,
        programs=(graph.program,),
        files=tuple(describe_file(folder, name) for name in listed),
        parity=graph.parity,
        provenance=_provenance(graph, record),
    )
    (folder / name).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def list_files(folder: Path) -> list[str]:
    """Every file below a bundle folder but the manifest: relative, forward slashes, sorted."""
    paths = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir())
    return sorted(name for name in paths if name != MANIFEST_NAME)


def describe_file(folder: Path, name: str) -> FileEntry:
    """Size and hash of one file of a bundle folder."""
    path = folder / name
    return FileEntry(path=name, size_bytes=path.stat().st_size, sha256=hash_file(path))


def hash_file(path: Path) -> str:
    """sha256 of a file's content, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def hash_kv_identity(inputs: Mapping[str, str], kv: KVSpec, profile: str) -> str:
    """One hash over all that decides what a cached key or value is.

    Two bundles share it only if a block of one could be read by the other.
    """
    facts = {
        "version": _KV_IDENTITY_VERSION,
        "graph_contract": str(GRAPH_CONTRACT),
        "profile": profile,
        "kv_layout": kv.layout.value,
        "kv_dtype": kv.dtype,
        "block_size": str(kv.block_size),
        "bytes_per_block": str(kv.bytes_per_block),
        "export": dict(inputs),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def is_simulated(manifest: Manifest) -> bool:
    """Whether no card, but the simulator alone, runs the bundle's programs."""
    return manifest.provenance.get(SIMULATED_KEY) == "true"


def parse_source_date(environ: Mapping[str, str]) -> int | None:
    """SOURCE_DATE_EPOCH as seconds; None when it is not set.

    Raises:
        ConfigError: It is not a whole number.
    """
    text = environ.get("SOURCE_DATE_EPOCH")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"SOURCE_DATE_EPOCH is {text!r}, wanted seconds as a whole number")
    return int(text)


def product_version() -> str:
    """The version of omserve itself."""
    try:
        return importlib.metadata.version("omserve")
    except importlib.metadata.PackageNotFoundError:
        # A source tree that was never installed.
        return "source tree"


def _provenance(graph: ExportedGraph, record: BuildRecord) -> dict[str, str]:
    facts = {f"tool.{name}": version for name, version in graph.tool_versions.items()}
    facts |= {
        "tool.omserve": product_version(),
        "tool.python": platform.python_version(),
        "checkpoint": record.checkpoint_name,
        "checkpoint_sha256": graph.checkpoint_sha256,
        "argv": _normal_argv(graph, record),
    }
    if record.source_date is not None:
        facts["source_date"] = str(record.source_date)
    return facts


def _normal_argv(graph: ExportedGraph, record: BuildRecord) -> str:
    """The command that builds this bundle, every default spelled out and every path left out."""
    model, kv = graph.model, graph.kv
    words = ["export-om", "build", record.checkpoint_name, "--target", record.target]
    words += ["--name", model.name, "--block-size", str(kv.block_size)]
    words += ["--max-model-len", str(model.max_model_len)]
    words += ["--max-num-seqs", str(model.max_num_seqs)]
    if kv.num_blocks is not None:
        words += ["--num-blocks", str(kv.num_blocks)]
    return shlex.join([*words, *record.flags])
