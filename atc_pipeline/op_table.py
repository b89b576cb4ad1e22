"""The ONNX operators that ATC's parser accepts, and where an operator runs on the device.

Owns the reading of `data/onnx_ops.json`, which `export-om lint` and `simatc` share. What follows
for a graph is theirs.

Source: hicann/ge parser/parser/onnx/onnx_parser.cc (the key rule); the plugins of hicann/ops-nn,
ops-math and ops-cv (the registrations, each entry names its file); hicann/docs
atlas_infer_ops_list (the engines on 310P).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TypedDict, cast

DEFAULT_DOMAIN = "ai.onnx"


class _OperatorEntry(TypedDict, total=False):
    opsets: str
    ascend_ops: list[str]
    attributes_read: list[str]
    attributes_required: list[str]
    not_open_in: list[str]
    closed_before: bool
    older_opsets: dict[str, str]
    note: str
    source: list[str]


class _EngineEntry(TypedDict, total=False):
    ai_core: str
    ai_cpu: str
    note: str
    source: str


class _BuiltinEntry(TypedDict):
    note: str
    source: str


class _Document(TypedDict):
    max_opset: dict[str, int]
    parser_builtins: dict[str, _BuiltinEntry]
    not_registered: dict[str, list[str]]
    operators: dict[str, dict[str, _OperatorEntry]]
    ascend310p: dict[str, dict[str, _EngineEntry]]


@dataclass(frozen=True, slots=True)
class Operator:
    """One ONNX operator with a plugin.

    Attributes:
        opsets: The opset versions a model may declare for the domain; no others match.
        ascend_ops: The device operators it becomes.
        attributes_read: Attribute names the plugin is known to read; not always complete.
        attributes_required: Those without which the plugin fails.
        not_open_in: CANN releases whose open sources lack the plugin.
        closed_before: Whether those releases had it in a closed library instead (inferred).
        older_opsets: The opsets of releases that accept others, by release.
    """

    domain: str
    op_type: str
    opsets: frozenset[int]
    ascend_ops: tuple[str, ...]
    attributes_read: tuple[str, ...] = ()
    attributes_required: tuple[str, ...] = ()
    not_open_in: tuple[str, ...] = ()
    closed_before: bool = False
    older_opsets: Mapping[str, frozenset[int]] = field(default_factory=dict)
    note: str = ""
    source: str = ""

    @property
    def opset_range(self) -> str:
        """The opsets for a message, such as `8-16, 18`."""
        return ", ".join(_spans(sorted(self.opsets)))


@dataclass(frozen=True, slots=True)
class Engine:
    """Where a device operator runs on Ascend 310P, in the words of its manual page."""

    ai_core: str
    ai_cpu: str
    note: str
    source: str


class OperatorTable:
    """All of the table; immutable and safe to share between threads."""

    def __init__(self, document: _Document) -> None:
        self._operators = {
            (domain, op_type): _operator(domain, op_type, entry)
            for domain, entries in document["operators"].items()
            for op_type, entry in entries.items()
        }
        self._engines = {
            name: _engine(entry) for name, entry in document["ascend310p"]["engines"].items()
        }
        self.builtins: Mapping[str, str] = {
            name: f"{entry['note']} ({entry['source']})"
            for name, entry in document["parser_builtins"].items()
        }
        self.max_opset: Mapping[str, int] = document["max_opset"]
        self.domains = frozenset(document["operators"])
        self._without_plugin = frozenset(document["not_registered"]["without_plugin"])

    def find(self, domain: str, op_type: str) -> Operator | None:
        """The operator, whatever opset; None when nothing is registered under the name.

        Args:
            domain: `""` is `ai.onnx`.
        """
        return self._operators.get((domain or DEFAULT_DOMAIN, op_type))

    def is_registered(self, domain: str, opset: int, op_type: str) -> bool:
        """Whether the parser knows `<domain>::<opset>::<op_type>`; without it, E16002.

        Args:
            opset: The version of the domain that the model's opset_import declares, not the one
                in which the operator last changed.
        """
        if (domain or DEFAULT_DOMAIN) == DEFAULT_DOMAIN and op_type in self.builtins:
            return True
        operator = self.find(domain, op_type)
        return operator is not None and opset in operator.opsets

    def other_domains(self, domain: str, op_type: str) -> tuple[str, ...]:
        """Domains other than `domain` that have an operator of the same name."""
        own = domain or DEFAULT_DOMAIN
        return tuple(d for d in sorted(self.domains) if d != own and self.find(d, op_type))

    def lacks_plugin(self, op_type: str) -> bool:
        """Whether the name is a device operator that no ONNX node reaches."""
        return op_type in self._without_plugin

    def engine(self, ascend_op: str) -> Engine | None:
        """Where a device operator runs on 310P; None when its page was not read."""
        return self._engines.get(ascend_op)


@cache
def load_operator_table() -> OperatorTable:
    """The table of this package; read once."""
    text = files("atc_pipeline").joinpath("data", "onnx_ops.json").read_text(encoding="utf-8")
    return OperatorTable(cast(_Document, json.loads(text)))


def _operator(domain: str, op_type: str, entry: _OperatorEntry) -> Operator:
    older = {release: _versions(text) for release, text in entry.get("older_opsets", {}).items()}
    return Operator(
        domain=domain,
        op_type=op_type,
        opsets=_versions(entry["opsets"]),
        ascend_ops=tuple(entry["ascend_ops"]),
        attributes_read=tuple(entry.get("attributes_read", ())),
        attributes_required=tuple(entry.get("attributes_required", ())),
        not_open_in=tuple(entry.get("not_open_in", ())),
        closed_before=entry.get("closed_before", False),
        older_opsets=older,
        note=entry.get("note", ""),
        source="; ".join(entry["source"]),
    )


def _engine(entry: _EngineEntry) -> Engine:
    return Engine(
        ai_core=entry.get("ai_core", ""),
        ai_cpu=entry.get("ai_cpu", ""),
        note=entry.get("note", ""),
        source=entry.get("source", ""),
    )


def _versions(text: str) -> frozenset[int]:
    """`8-10,12` as the set of its numbers."""
    spans = [part.partition("-") for part in text.split(",")]
    return frozenset(
        version for first, _, last in spans for version in range(int(first), int(last or first) + 1)
    )


def _spans(versions: list[int]) -> list[str]:
    """The reverse of `_versions`, in parts."""
    parts: list[list[int]] = []
    for version in versions:
        if parts and parts[-1][-1] == version - 1:
            parts[-1].append(version)
        else:
            parts.append([version])
    return [f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts]
