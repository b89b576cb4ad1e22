"""Rules on files: the size of the ONNX file, and the tensors kept outside of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from onnx import TensorProto, helper

from atc_pipeline.lint.graph import LintGraph, StoredTensor
from atc_pipeline.lint.report import Severity
from atc_pipeline.lint.rule import Fault, Rule

MAX_FILE_BYTES = 2**31 - 1
_PARSER = "hicann/ge parser/parser/onnx/onnx_parser.cc"
_CONSTANTS = "hicann/ge base/common/file_constant_utils"
_KEYS = frozenset({"location", "offset", "length"})


def _external(graph: LintGraph) -> Iterator[tuple[StoredTensor, dict[str, str]]]:
    for stored in graph.tensors():
        if stored.tensor.data_location == TensorProto.EXTERNAL:
            yield stored, {entry.key: entry.value for entry in stored.tensor.external_data}


def _located(graph: LintGraph) -> Iterator[tuple[StoredTensor, dict[str, str], Path]]:
    """The external tensors whose path stays in the model's folder."""
    for stored, entries in _external(graph):
        location = entries.get("location", "")
        if not _escapes(graph.path.parent, location):
            yield stored, entries, graph.path.parent / location


def _escapes(folder: Path, location: str) -> bool:
    path = PurePosixPath(location)
    if not location or path.is_absolute() or ".." in path.parts or "\\" in location:
        return True
    return not (folder / location).resolve().is_relative_to(folder.resolve())


def _foreign_keys(graph: LintGraph) -> Iterator[Fault]:
    for stored, entries in _external(graph):
        foreign = sorted(set(entries) - _KEYS)
        if foreign:
            yield Fault(
                stored.where,
                f"its external data has the key {foreign[0]!r}; the parser reads every key but "
                f"location as a number, and gives E10001 for a text",
            )


def _escaping(graph: LintGraph) -> Iterator[Fault]:
    for stored, entries in _external(graph):
        location = entries.get("location", "")
        if _escapes(graph.path.parent, location):
            yield Fault(stored.where, f"its external data lies at {location!r}")


def _missing(graph: LintGraph) -> Iterator[Fault]:
    for stored, _, path in _located(graph):
        if not path.is_file():
            yield Fault(stored.where, f"its file {path} is not there")


def _short(graph: LintGraph) -> Iterator[Fault]:
    for stored, entries, path in _located(graph):
        if path.is_file():
            reason = _misfit(stored.tensor, entries, path.stat().st_size)
            if reason:
                yield Fault(stored.where, f"{reason} ({path.name})")


def _misfit(tensor: TensorProto, entries: dict[str, str], file_bytes: int) -> str:
    """Why an external tensor cannot be read from its file; empty when it can."""
    texts = (entries.get("offset", "0"), entries.get("length", ""))
    if not all(text.isascii() and text.isdigit() for text in texts if text):
        return f"offset and length are {texts[0]!r} and {texts[1]!r}, wanted numbers"
    offset, wanted = int(texts[0] or 0), _num_bytes(tensor)
    length = int(texts[1]) if texts[1] else file_bytes - offset
    if wanted is not None and length < wanted:
        return f"it has {length} bytes there, its shape and type want {wanted}"
    if offset + length > file_bytes:
        return f"it ends at byte {offset + length}, the file has {file_bytes}"
    return ""


def _num_bytes(tensor: TensorProto) -> int | None:
    """The size of a tensor's data; None for a type that has no whole bytes."""
    try:
        item_bytes = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (KeyError, ValueError):
        return None
    return math.prod(tensor.dims) * item_bytes


def _in_branches(graph: LintGraph) -> Iterator[Fault]:
    for stored, _ in _external(graph):
        if stored.depth > 0:
            yield Fault(stored.where, "external data is not resolved inside of a branch of If")


RULES = (
    Rule(
        "external-data-key",
        Severity.ERROR,
        "save the weights again with location, offset and length alone (no checksum)",
        _PARSER,
        _foreign_keys,
    ),
    Rule(
        "external-data-path",
        Severity.ERROR,
        "keep the weights in the model's folder and name them relative to it",
        _PARSER,
        _escaping,
    ),
    Rule(
        "external-data-missing",
        Severity.ERROR,
        "put the file beside the model, or export again",
        _CONSTANTS,
        _missing,
    ),
    Rule(
        "external-data-short",
        Severity.ERROR,
        "copy the weights again, the file is damaged or cut",
        _CONSTANTS,
        _short,
    ),
    Rule(
        "external-data-in-branch",
        Severity.ERROR,
        "move the tensor to the main graph's initializers",
        "hicann/ge parser/parser/onnx/subgraph_adapter",
        _in_branches,
    ),
)
