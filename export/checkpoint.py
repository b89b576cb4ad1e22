"""A checkpoint as transformers loads it: float32, complete, nothing left over.

Owns loading and the check that every tensor is used. Which files count is `checkpoint_files.py`.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

from export.architectures import require_known_rope, require_known_type, require_proven
from export.checkpoint_files import CheckpointFiles
from export.gguf_facts import GgufFacts, read_gguf, unused_gguf_tensors
from export.gguf_once import parse_gguf_once
from export.spec import ExportSpec
from omruntime.errors import ConfigError, ExportError

# Without one of these transformers may make up an empty tokenizer.
_TOKENIZER_NAMES = frozenset(
    {
        "tokenizer.json",
        "tokenizer.model",
        "vocab.json",
        "vocab.txt",
        "spiece.model",
        "sentencepiece.bpe.model",
        "tiktoken.model",
        "tekken.json",
    }
)
# Buffers that old checkpoints carry and every model computes itself.
_DERIVED_SUFFIXES = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias")
# Settings of a config that change what a model returns beside its logits, for training or for
# other tools; the logits are the same.
_PLAIN_OUTPUT = {"return_dict": True, "output_router_logits": False}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint's config, before any weight is read.

    Attributes:
        folder: A view of the checkpoint that holds the chosen files alone.
        raw_config: config.json as it stands, or what the GGUF says; unlike `config` without
            the defaults of transformers' classes.
        raw_generation_config: generation_config.json as it stands; empty when there is none.
    """

    files: CheckpointFiles
    folder: Path
    config: PretrainedConfig
    raw_config: Mapping[str, object]
    raw_generation_config: Mapping[str, object]
    gguf: GgufFacts | None


@contextmanager
def open_checkpoint(files: CheckpointFiles, spec: ExportSpec) -> Iterator[Checkpoint]:
    """Read the configs and refuse what is not proven.

    transformers sees a folder of links to the chosen files, so that a stray weight file, which
    it would prefer, cannot be read.

    Raises:
        ConfigError: A config cannot be read.
        UnprovenModelError: As in `architectures.py`, or it needs code of its own.
    """
    with (
        tempfile.TemporaryDirectory(prefix="omserve-checkpoint-") as view,
        _quiet(),
        parse_gguf_once(),
    ):
        folder = Path(view)
        for name in files.weights + files.others:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).symlink_to((files.folder / name).resolve())
        gguf = read_gguf(files.folder / files.weights[0]) if files.gguf else None
        raw = gguf.config if gguf else _read_json(folder / "config.json")
        if not gguf:
            require_known_type(raw)
        require_known_rope(raw)
        config = _load_config(folder, files)
        require_proven(config, spec.allow_unproven)
        generation = folder / "generation_config.json"
        raw_generation = _read_json(generation) if generation.exists() else {}
        yield Checkpoint(files, folder, config, raw, raw_generation, gguf)


def load_model(checkpoint: Checkpoint, spec: ExportSpec) -> PreTrainedModel:
    """The model in float32 and evaluation mode, attending as transformers does by default.

    Raises:
        ExportError: It cannot be loaded, or tensors are missing, left over, of another shape or
            hold NaN; all are named.
    """
    try:
        # The GGUF reader has a progress bar that no setting of transformers turns off.
        with redirect_stderr(io.StringIO()):
            model, info = AutoModelForCausalLM.from_pretrained(
                checkpoint.folder,
                config=checkpoint.config,
                dtype=torch.float32,
                output_loading_info=True,
                # Else transformers raises without naming the tensors.
                ignore_mismatched_sizes=True,
                local_files_only=True,
                trust_remote_code=False,
                **_source(checkpoint.files),
            )
    # transformers raises all kinds, down to KeyError, on what it does not know.
    except Exception as error:
        raise ExportError(
            f"transformers cannot load {checkpoint.files.folder}: "
            f"{_cause(error, checkpoint.folder, checkpoint.files)}"
        ) from error
    _require_complete(checkpoint, model, info, spec)
    _require_numbers(model)
    model.eval()
    return model


def load_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerFast:
    """The tokenizer of the checkpoint.

    Raises:
        ExportError: There is none, or it has no form that the tokenizers library runs.
    """
    if not checkpoint.gguf and not _TOKENIZER_NAMES & set(checkpoint.files.others):
        raise ExportError(
            f"{checkpoint.files.folder} has no tokenizer file, wanted tokenizer.json; download it "
            f"with tokenizer_config.json from where the weights come from"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            checkpoint.folder,
            local_files_only=True,
            trust_remote_code=False,
            **_source(checkpoint.files),
        )
    except Exception as error:
        raise ExportError(
            f"transformers cannot load a tokenizer from {checkpoint.files.folder}: "
            f"{_cause(error, checkpoint.folder, checkpoint.files)}"
        ) from error
    if not tokenizer.is_fast:
        raise ExportError(
            f"{type(tokenizer).__name__} has no tokenizer.json form, which serving needs"
        )
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


def _source(files: CheckpointFiles) -> dict[str, str]:
    return {"gguf_file": files.weights[0]} if files.gguf else {}


def _load_config(folder: Path, files: CheckpointFiles) -> PretrainedConfig:
    try:
        config = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **_source(files)
        )
    except Exception as error:
        raise ConfigError(
            f"transformers cannot read the config of {files.folder}: {_cause(error, folder, files)}"
        ) from error
    assert isinstance(config, PretrainedConfig)
    for name, value in _PLAIN_OUTPUT.items():
        if hasattr(config, name):
            setattr(config, name, value)
    return config


def _cause(error: Exception, folder: Path, files: CheckpointFiles) -> str:
    """What transformers says, with the checkpoint's own folder instead of our view of it."""
    if "trust_remote_code" in str(error):
        return "it needs code of its own (auto_map), and such code is never run"
    return f"{type(error).__name__}: {error}".replace(str(folder), str(files.folder))


def _require_complete(
    checkpoint: Checkpoint,
    model: PreTrainedModel,
    info: Mapping[str, set[Any]],
    spec: ExportSpec,
) -> None:
    missing = sorted(n for n in info["missing_keys"] if not n.endswith(_DERIVED_SUFFIXES))
    mismatched = sorted(
        f"{name} is {list(got)} and the config wants {list(wanted)}"
        for name, got, wanted in info["mismatched_keys"]
    )
    if missing or mismatched:
        raise ExportError(
            f"the checkpoint does not fill the model: missing {_listed(missing)}; of another "
            f"shape {_listed(mismatched)}; config and weights do not belong together"
        )
    unused = sorted(n for n in info["unexpected_keys"] if not n.endswith(_DERIVED_SUFFIXES))
    if checkpoint.gguf:
        unused += unused_gguf_tensors(checkpoint.gguf, model)
    if unused and not spec.allow_unused_tensors:
        raise ExportError(
            f"the model reads {len(unused)} of the checkpoint's tensors not at all: "
            f"{_listed(unused)}; a flag in its config is wrong, or transformers does not know "
            f"them; give --allow-unused-tensors to export without them"
        )


def _require_numbers(model: PreTrainedModel) -> None:
    damaged = [
        name
        for name, parameter in model.named_parameters()
        # The least value of a tensor with a NaN is NaN; unlike isnan it takes no memory.
        if parameter.numel() and torch.aminmax(parameter).min.isnan()
    ]
    if damaged:
        raise ExportError(
            f"the checkpoint itself gives NaN: its {_listed(damaged)} hold NaN; download or "
            f"convert it again"
        )


def _listed(names: list[str], limit: int = 12) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _read_json(path: Path) -> Mapping[str, object]:
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path.name} of the checkpoint cannot be read: {error}") from error
    if not isinstance(plain, dict):
        raise ConfigError(f"{path.name} of the checkpoint is no object")
    return plain


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' own progress bars and notices; ours say what happens."""
    level, bars = (
        transformers_logging.get_verbosity(),
        transformers_logging.is_progress_bar_enabled(),
    )
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
