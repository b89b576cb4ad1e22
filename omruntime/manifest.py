"""The manifest `bundle.json`: the typed index of a bundle, read and written here.

Owns the format and the checks of single values. Hashing files and writing bundles is
`atc_pipeline/bundle.py`; what a device makes of a program is the device's. Standard library
only, so that every part of the project may read it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from omruntime.buckets import Bucket, BucketTable
from omruntime.errors import BundleError

FORMAT_VERSION = 1
GRAPH_CONTRACT = 1
MANIFEST_NAME = "bundle.json"


class KVLayout(Enum):
    """How keys and values lie in the pool.

    HEAD_MAJOR: per layer and K/V, [num_kv_heads, num_blocks, block_size, head_dim].
    TOKEN_MAJOR: [num_slots, num_layers * 2 * num_kv_heads, head_dim].
    """

    HEAD_MAJOR = "head_major"
    TOKEN_MAJOR = "token_major"  # noqa: S105, not a password


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What an unset sampling field means for this checkpoint (its generation_config.json)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        """Check the ranges, which are those of a request's own values.

        Raises:
            BundleError: A value is out of range; the message names it.
        """
        for name, is_right, wanted in (
            ("temperature", 0.0 <= self.temperature < math.inf, "at least 0"),
            ("top_p", 0.0 < self.top_p <= 1.0, "above 0 and up to 1"),
            ("top_k", self.top_k >= -1, "at least -1"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "0 to 1"),
            ("repetition_penalty", 0.0 < self.repetition_penalty < math.inf, "above 0"),
        ):
            if not is_right:
                raise BundleError(f"{name} is {getattr(self, name)}, wanted {wanted}")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What serving needs to know about the checkpoint.

    Attributes:
        vocab_size: Width of the logits; may pass the tokenizer's.
        max_model_len: Most positions (prompt plus answer) that the buckets cover.
        max_num_seqs: Most rows that a decode step takes.
        eos_token_ids: Ids that end a sequence; empty means only the length limit ends it.
        eos_source: Where the end ids come from, for humans.
        dtype: Of the weights, as NumPy names it, or `bfloat16`, `int8`, `int4`.
    """

    name: str
    architecture: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    dtype: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    eos_source: str
    sampling_defaults: SamplingDefaults

    def __post_init__(self) -> None:
        """Check sizes and token ids.

        Raises:
            BundleError: A value is out of range; the message names it.
        """
        names = ("num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size")
        _require_at_least(self, 1, *names, "max_num_seqs")
        _require_at_least(self, 2, "max_model_len")
        for name, token_ids in (
            ("bos_token_id", () if self.bos_token_id is None else (self.bos_token_id,)),
            ("eos_token_ids", self.eos_token_ids),
        ):
            for token_id in token_ids:
                if not 0 <= token_id < self.vocab_size:
                    raise BundleError(
                        f"{name}: got token id {token_id}, wanted the model's 0 to "
                        f"{self.vocab_size - 1}"
                    )


@dataclass(frozen=True, slots=True)
class KVSpec:
    """The shape of the paged KV cache.

    Attributes:
        num_blocks: The pool's blocks where the programs were compiled for one pool shape (ATC
            wants it fixed); None leaves the number to the start of serving.
    """

    layout: KVLayout
    block_size: int
    dtype: str
    bytes_per_block: int
    num_blocks: int | None = None

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            BundleError: A value is out of range; the message names it.
        """
        _require_at_least(self, 1, "block_size", "bytes_per_block")
        if self.num_blocks is not None:
            _require_at_least(self, 2, "num_blocks")  # the null block and one to hand out


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a program.

    Symbolic dimensions are the strings batch, tokens, past_blocks, num_blocks and new_tokens
    (batch * tokens).
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """One compiled file and the buckets it runs.

    Attributes:
        role: `step` for the programs of graph contract 1.
        path: Relative to the bundle folder, with forward slashes.
    """

    role: str
    path: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of the bundle; `path` is relative, with forward slashes."""

    path: str
    size_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        """Check the size.

        Raises:
            BundleError: It is negative.
        """
        _require_at_least(self, 0, "size_bytes")


@dataclass(frozen=True, slots=True)
class ParitySummary:
    """What the parity gate measured when the bundle was built; details in reports/."""

    max_abs_logits_diff: float
    tolerance: float
    num_greedy_tokens: int
    num_near_ties: int
    num_cases: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The whole index. `to_json` and `from_json` are inverse."""

    format_version: int
    graph_contract: int
    profile: str
    soc: str
    kv_identity: str
    model: ModelFacts
    kv: KVSpec
    programs: tuple[ProgramSpec, ...]
    files: tuple[FileEntry, ...]
    parity: ParitySummary
    provenance: Mapping[str, str]

    def bucket_table(self) -> BucketTable:
        """All buckets of all step programs."""
        buckets = (b for p in self.programs if p.role == "step" for b in p.buckets)
        return BucketTable(buckets, self.kv.block_size)

    def to_json(self) -> str:
        """Canonical text: sorted keys, two spaces, a final newline; equal input, equal bytes."""
        return json.dumps(_to_plain(self), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str, name: str = MANIFEST_NAME) -> Manifest:
        """Parse and check a manifest.

        Args:
            name: Of the file that it stands in, for errors.

        Raises:
            BundleError: Not JSON, of another format version, or a field is missing, unknown or
                of the wrong type; the message names the field.
        """
        try:
            plain = json.loads(text)
        except (ValueError, RecursionError) as error:
            # ValueError also stands for numbers of thousands of digits.
            raise BundleError(f"{name} is not JSON: {error}") from error
        if not isinstance(plain, dict):
            raise BundleError(f"{name}: got {type(plain).__name__}, wanted an object")
        versions = {"format_version": FORMAT_VERSION, "graph_contract": GRAPH_CONTRACT}
        for key, wanted in versions.items():
            if plain.get(key) != wanted:
                raise BundleError(
                    f"{name}: {key} is {plain.get(key)!r}, this omserve reads {wanted}; "
                    f"build the bundle again with the same omserve version"
                )
        manifest = _from_plain(Manifest, plain, name)
        assert isinstance(manifest, Manifest)
        return manifest

    @staticmethod
    def read(bundle: Path) -> Manifest:
        """Read the manifest of a bundle folder.

        Raises:
            BundleError: No such folder or file, or as `from_json`.
        """
        path = bundle / MANIFEST_NAME
        try:
            return Manifest.from_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise BundleError(
                f"cannot read {path}: {error}; a bundle is the folder that "
                f"`export-om build --output` wrote from a checkpoint, or of an emitted folder by "
                f"--from-compiled"
            ) from error

    def digest(self) -> str:
        """sha256 over the canonical text, as hexadecimal digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def _require_at_least(owner: object, least: int, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if value < least:
            raise BundleError(f"{name} is {value}, wanted at least {least}")


def _to_plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): _to_plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_to_plain(item) for item in value]
    return value


def _from_plain(wanted: Any, value: object, where: str) -> object:
    """Rebuild a value of the annotated type `wanted`; `where` names the field in errors."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong_type(where, value, "a list")
        return tuple(_from_plain(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin in (typing.Union, types.UnionType):
        return _from_union(arguments, value, where)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise _wrong_type(where, value, "an object")
        return {k: _from_plain(arguments[1], v, f"{where}.{k}") for k, v in value.items()}
    if dataclasses.is_dataclass(wanted):
        return _dataclass_from_plain(wanted, value, where)
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        try:
            return wanted(value)
        except ValueError as error:
            raise _wrong_type(where, value, f"one of {[m.value for m in wanted]}") from error
    return _scalar_from_plain(wanted, value, where)


def _from_union(arguments: tuple[Any, ...], value: object, where: str) -> object:
    for candidate in arguments:
        if candidate is types.NoneType:
            if value is None:
                return None
        elif type(value) is candidate:
            return value
    names = " or ".join(a.__name__ for a in arguments)
    raise _wrong_type(where, value, names)


def _dataclass_from_plain(wanted: Any, value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise _wrong_type(where, value, "an object")
    hints = typing.get_type_hints(wanted)
    names = {f.name for f in dataclasses.fields(wanted)}
    if value.keys() != names:
        missing, unknown = sorted(names - value.keys()), sorted(value.keys() - names)
        raise BundleError(f"{where}: missing fields {missing}, unknown fields {unknown}")
    fields = {n: _from_plain(hints[n], value[n], f"{where}.{n}") for n in sorted(names)}
    try:
        return wanted(**fields)
    except BundleError as error:
        raise BundleError(f"{where}: {error}") from error


def _scalar_from_plain(wanted: Any, value: object, where: str) -> object:
    if wanted is float and isinstance(value, int | float) and not isinstance(value, bool):
        # JSON's reader takes NaN, and both it and int go beyond the largest float.
        if not abs(value) <= sys.float_info.max:
            raise _wrong_type(where, value, "a finite number")
        return float(value)
    if type(value) is not wanted:
        raise _wrong_type(where, value, wanted.__name__)
    return value


def _wrong_type(where: str, value: object, wanted: str) -> BundleError:
    return BundleError(f"{where}: got {value!r} ({type(value).__name__}), wanted {wanted}")
