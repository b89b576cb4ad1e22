"""What a GGUF file says of itself: settings, tensors, and whether it is whole.

Owns the refusals that only the file itself allows: transformers fills silent defaults for what a
GGUF lacks, and drops tensors it does not know. Reading weights is left to transformers. The
`gguf` package reads headers too, at about a minute for a vocabulary of 262,144.

Source: ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from transformers import PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
)

from omruntime.errors import ConfigError, ExportError

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_MAX_ENTRIES = 1 << 24
# Learned positions need no rope base.
_WITHOUT_ROPE = frozenset({"gpt2"})
_ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """Header of a GGUF file; arrays longer than 64 entries are left out of `metadata`."""

    metadata: Mapping[str, object]
    tensor_names: tuple[str, ...]

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def config(self) -> Mapping[str, object]:
        """The special ids, under the names of a config.json."""
        names = {"eos_token_id": "eos", "bos_token_id": "bos"}
        keys = {name: f"tokenizer.ggml.{part}_token_id" for name, part in names.items()}
        return {name: self.metadata[key] for name, key in keys.items() if key in self.metadata}

    @property
    def add_bos(self) -> bool | None:
        """Whether a plain text begins with BOS; None when the file does not say."""
        value = self.metadata.get("tokenizer.ggml.add_bos_token")
        return value if isinstance(value, bool) else None


def read_gguf(path: Path) -> GgufFacts:
    """Read and check the header of a GGUF file.

    Raises:
        ConfigError: The file is damaged, cut short or of an unknown version.
        ExportError: It lacks a setting without which the numbers would be a guess.
    """
    try:
        with path.open("rb") as file:
            facts, end = _read_header(file)
    except (struct.error, ValueError, KeyError) as error:
        raise ConfigError(f"{path} is a damaged GGUF file: {error}; download it again") from error
    size = path.stat().st_size
    if size < end:
        raise ConfigError(f"{path} has {size} bytes, wanted {end}; download it again")
    _require_rope(facts)
    return facts


def unused_gguf_tensors(facts: GgufFacts, model: PreTrainedModel) -> list[str]:
    """Names of the file's tensors that transformers has no place for."""
    processor = TENSOR_PROCESSORS.get(facts.architecture, TensorProcessor)(
        config=model.config.to_dict()
    )
    return sorted(set(facts.tensor_names) - set(get_gguf_hf_weights_map(model, processor)))


def _require_rope(facts: GgufFacts) -> None:
    arch = facts.architecture
    base = f"{arch}.rope.freq_base"
    if base not in facts.metadata and arch not in _WITHOUT_ROPE:
        raise ExportError(
            f"the GGUF file has no {base}; transformers would take 10000 in silence; convert the "
            f"model again, or set it with gguf-py's gguf_set_metadata"
        )
    scaling = facts.metadata.get(f"{arch}.rope.scaling.type", "none")
    if scaling != "none" or _ROPE_FACTORS in facts.tensor_names:
        raise ExportError(
            f"the GGUF file scales its rope (type {scaling!r}, factors in "
            f"{_ROPE_FACTORS if _ROPE_FACTORS in facts.tensor_names else 'its settings'}), which "
            f"transformers does not read from GGUF; export the safetensors checkpoint instead"
        )


def _read_header(file: BinaryIO) -> tuple[GgufFacts, int]:
    """The facts, and the file's least size in bytes."""
    magic = _exactly(file, 4)
    version, num_tensors, num_entries = _unpack(file, "<IQQ")
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError(f"magic {magic!r}, version {version}, wanted b'GGUF' and 2 or 3")
    if max(num_tensors, num_entries) > _MAX_ENTRIES:
        raise ValueError(f"{num_tensors} tensors, {num_entries} settings")
    metadata: dict[str, object] = {}
    for _ in range(num_entries):
        key = _string(file)
        (kind,) = _unpack(file, "<I")
        metadata[key] = _value(file, kind)
    names, data_bytes = [], 0
    for _ in range(num_tensors):
        name, last = _tensor(file)
        names.append(name)
        data_bytes = max(data_bytes, last)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r}")
    start = -(-file.tell() // alignment) * alignment
    return GgufFacts(metadata, tuple(names)), start + data_bytes


def _tensor(file: BinaryIO) -> tuple[str, int]:
    """A tensor's name and the end of its data, counted from the start of all data."""
    name = _string(file)
    (rank,) = _unpack(file, "<I")
    if rank > 8:
        raise ValueError(f"tensor {name} has {rank} dimensions")
    elements = 1
    for size in _unpack(file, f"<{rank}Q"):
        elements *= size
    kind, offset = _unpack(file, "<IQ")
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    return name, offset + elements // block * block_bytes


def _value(file: BinaryIO, kind: int) -> object:
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        return _unpack(file, f"<{_SCALARS[kind]}")[0]
    element, count = _unpack(file, "<IQ")
    if count > _MAX_ENTRIES:
        raise ValueError(f"an array of {count}")
    if count <= 64:
        return [_value(file, element) for _ in range(count)]
    if element == _STRING:
        for _ in range(count):
            _string(file)
    else:
        _unpack(file, f"<{count}{_SCALARS[element]}")
    return None


def _string(file: BinaryIO) -> str:
    (length,) = _unpack(file, "<Q")
    return _exactly(file, length).decode(errors="replace")


def _unpack(file: BinaryIO, form: str) -> tuple[int, ...]:
    return struct.unpack(form, _exactly(file, struct.calcsize(form)))


def _exactly(file: BinaryIO, count: int) -> bytes:
    if count > _MAX_ENTRIES:
        raise ValueError(f"a text of {count} bytes")
    content = file.read(count)
    if len(content) != count:
        raise ValueError(f"it ends at byte {file.tell()}")
    return content
