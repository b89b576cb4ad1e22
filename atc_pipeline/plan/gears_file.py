"""gears.json: planned buckets as `export-om build --buckets` reads them.

Owns the format and its checks. Whether the buckets cover a model is `BucketTable.require_cover`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from omruntime.buckets import Bucket, Phase
from omruntime.errors import BundleError, ConfigError

_KEYS = frozenset({"buckets", "num_blocks", "block_size"})
_BUCKET_KEYS = frozenset({"phase", "batch", "tokens", "past_blocks"})


@dataclass(frozen=True, slots=True)
class PlannedGears:
    """The content of the file.

    Attributes:
        num_blocks: Blocks of the KV pool with the null block; None leaves it to the build.
    """

    buckets: tuple[Bucket, ...]
    num_blocks: int | None
    block_size: int

    def to_json(self) -> str:
        """Text with one bucket a line; equal input, equal bytes."""
        lines = ",\n".join(f"    {json.dumps(_plain(bucket))}" for bucket in self.buckets)
        return (
            f'{{\n  "block_size": {self.block_size},\n  "buckets": [\n{lines}\n  ],\n'
            f'  "num_blocks": {json.dumps(self.num_blocks)}\n}}\n'
        )


def read_gears(path: Path) -> PlannedGears:
    """Read and check a file.

    Raises:
        ConfigError: It cannot be read, or a value is missing, unknown, of the wrong type or out
            of range; the message names it.
    """
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"cannot read the buckets in {path}: {error}; wanted what `export-om plan --output` "
            f"wrote"
        ) from error
    entries = _object(plain, f"{path}", _KEYS, {"buckets", "block_size"})
    buckets = entries["buckets"]
    if not isinstance(buckets, list) or not buckets:
        raise ConfigError(f"{path}: buckets is {buckets!r}, wanted a list of at least one")
    num_blocks = entries.get("num_blocks")
    return PlannedGears(
        buckets=tuple(_bucket(b, f"{path}: buckets[{i}]") for i, b in enumerate(buckets)),
        num_blocks=None if num_blocks is None else _number(num_blocks, f"{path}: num_blocks", 2),
        block_size=_number(entries["block_size"], f"{path}: block_size", 1),
    )


def _bucket(plain: object, where: str) -> Bucket:
    entries = _object(plain, where, _BUCKET_KEYS, _BUCKET_KEYS)
    names = {phase.value: phase for phase in Phase}
    phase = names.get(str(entries["phase"]))
    if phase is None:
        raise ConfigError(f"{where}.phase is {entries['phase']!r}, wanted one of {list(names)}")
    sizes = [_number(entries[name], f"{where}.{name}", 0) for name in _sizes()]
    try:
        return Bucket(phase, *sizes)
    except BundleError as error:
        raise ConfigError(f"{where}: {error}") from error


def _sizes() -> tuple[str, str, str]:
    return ("batch", "tokens", "past_blocks")


def _object(
    plain: object, where: str, known: frozenset[str], needed: frozenset[str] | set[str]
) -> dict[str, object]:
    if not isinstance(plain, dict):
        raise ConfigError(f"{where} is {type(plain).__name__}, wanted an object")
    foreign, missing = sorted(set(plain) - known), sorted(needed - set(plain))
    if foreign or missing:
        what = f"unknown: {', '.join(foreign)}" if foreign else f"missing: {', '.join(missing)}"
        raise ConfigError(f"{where}: {what}; wanted the keys {', '.join(sorted(known))}")
    return plain


def _number(value: object, where: str, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{where} is {value!r}, wanted a whole number of at least {least}")
    return value


def _plain(bucket: Bucket) -> dict[str, object]:
    return {"phase": bucket.phase.value} | {name: getattr(bucket, name) for name in _sizes()}
