"""Which files of a checkpoint are read, and whether they are whole; nothing is loaded here.

Owns the choice of files and their integrity. Loading the model is `checkpoint.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from huggingface_hub import snapshot_download

from omruntime.errors import ConfigError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
GGUF_MAGIC = b"GGUF"
# Weights and adapters in any format: of these, only the chosen ones may reach transformers.
_WEIGHT_NAMES = re.compile(
    r".*\.(safetensors|bin|pt|pth|gguf|h5|msgpack|onnx)$|.*\.index\.json$|adapter_config\.json$"
)
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The files of one checkpoint.

    Attributes:
        folder: Where they lie.
        weights: Names of the weight files, sorted; one GGUF, or safetensors.
        others: Names of all other files that may be read (config, tokenizer, template).
        ignored: Names of weight files that belong to something else.
        gguf: Whether the weights are a GGUF file.
    """

    folder: Path
    weights: tuple[str, ...]
    others: tuple[str, ...]
    ignored: tuple[str, ...]
    gguf: bool

    def sha256(self) -> str:
        """One hash over names and contents of everything that may be read."""
        digest = hashlib.sha256()
        for name in sorted(self.weights + self.others):
            digest.update(f"{name}\0{file_sha256(self.folder / name)}\n".encode())
        return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """sha256 of a file's content, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_checkpoint(checkpoint: str) -> CheckpointFiles:
    """Choose and check the files of a checkpoint.

    Args:
        checkpoint: A folder, a GGUF file, or else a Hub id, which is downloaded.

    Raises:
        ConfigError: Nothing there, or files are missing or damaged; each is named.
    """
    path = Path(checkpoint).expanduser()
    if path.is_file():
        return _gguf_files(path)
    if path.is_dir():
        return _folder_files(path)
    if not _HUB_ID.fullmatch(checkpoint):
        raise ConfigError(
            f"no checkpoint at {checkpoint}; wanted a folder with safetensors, a GGUF file or a "
            f"Hub id such as org/name"
        )
    return _folder_files(_download(checkpoint))


def _download(hub_id: str) -> Path:
    patterns = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no folder or file {hub_id}, and as a Hub id it cannot be fetched: {error}"
        ) from error


def _gguf_files(path: Path) -> CheckpointFiles:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != GGUF_MAGIC:
        raise ConfigError(
            f"{path} begins with {magic!r}, wanted {GGUF_MAGIC!r}; a single file must be a GGUF, "
            f"for safetensors give the folder"
        )
    return CheckpointFiles(path.parent, (path.name,), (), (), gguf=True)


def _folder_files(folder: Path) -> CheckpointFiles:
    # Relative names with forward slashes; a template folder is the only one that matters.
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    present = [n for n in names if "/" not in n or n.startswith("additional_chat_templates/")]
    weights = [n for n in present if _WEIGHT_NAMES.fullmatch(n)]
    chosen, gguf = _choose_weights(folder, weights)
    # A GGUF holds config and tokenizer itself.
    others = () if gguf else tuple(n for n in present if n not in weights)
    if not gguf and "config.json" not in others:
        raise ConfigError(f"{folder} has weights but no config.json; download it completely")
    used = {*chosen, INDEX_NAME} if len(chosen) > 1 or INDEX_NAME in weights else set(chosen)
    ignored = tuple(n for n in weights if n not in used)
    return CheckpointFiles(folder, tuple(sorted(used & {*names})), others, ignored, gguf)


def _choose_weights(folder: Path, weights: list[str]) -> tuple[list[str], bool]:
    """The weight files that count: the index decides, then the single file, then a GGUF."""
    if INDEX_NAME in weights:
        index = _read_index(folder / INDEX_NAME)
        shards = sorted(set(index.values()))
        _refuse_damaged(folder, shards, index)
        return shards, False
    if SINGLE_NAME in weights:
        _refuse_damaged(folder, [SINGLE_NAME], {})
        return [SINGLE_NAME], False
    ggufs = [n for n in weights if n.endswith(".gguf")]
    if len(ggufs) == 1:
        return list(_gguf_files(folder / ggufs[0]).weights), True
    if ggufs:
        raise ConfigError(f"{folder} has several GGUF files, name one: {', '.join(ggufs)}")
    raise ConfigError(
        f"{folder} has no {SINGLE_NAME}, {INDEX_NAME} or GGUF file"
        + (f"; it has {', '.join(weights)}, which must be converted first" if weights else "")
    )


def _read_index(path: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} is no weight index: {error!r}; download it again") from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{path} has an empty weight_map; download it again")
    index = {str(name): str(shard) for name, shard in weight_map.items()}
    for name, shard in index.items():
        inside = PurePosixPath(shard)
        if inside.is_absolute() or ".." in inside.parts:
            raise ConfigError(
                f"{path} says that {name} lies in {shard!r}, outside of the checkpoint's folder; "
                f"wanted a file beside it; don't use this checkpoint"
            )
    return index


def _refuse_damaged(folder: Path, shards: list[str], index: dict[str, str]) -> None:
    problems = []
    for shard in shards:
        path = folder / shard
        if not path.is_file():
            problems.append(f"{shard} is missing")
            continue
        try:
            present = _safetensors_names(path)
        except ValueError as error:
            problems.append(f"{shard} is damaged ({error})")
            continue
        absent = sorted(n for n, s in index.items() if s == shard and n not in present)
        if absent:
            problems.append(f"{shard} lacks {', '.join(absent)}")
    if problems:
        raise ConfigError(
            f"the checkpoint {folder} is incomplete: {'; '.join(problems)}; download these again"
        )


def _safetensors_names(path: Path) -> set[str]:
    """Tensor names of a safetensors file whose length fits its header.

    Raises:
        ValueError: It does not.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        if len(head) < 8:
            raise ValueError(f"{size} bytes, wanted at least 8")
        (length,) = struct.unpack("<Q", head)
        if length > min(size - 8, _MAX_HEADER_BYTES):
            raise ValueError(f"{size} bytes, its header alone wants {length + 8}")
        header = json.loads(file.read(length))
    tensors = {k: v for k, v in header.items() if k != "__metadata__"}
    wanted = 8 + length + max((t["data_offsets"][1] for t in tensors.values()), default=0)
    if size != wanted:
        raise ValueError(f"{size} bytes, wanted {wanted}")
    return set(tensors)
