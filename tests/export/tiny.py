"""Tiny seeded checkpoints of every proven architecture, with a small tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from export.build import export_step_graph
from export.result import ExportResult
from export.spec import ExportSpec

LENGTH = 64
BASE: Mapping[str, object] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {
    "vocab_size": 300,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny_model(model_type: str, **changes: object) -> PreTrainedModel:
    """A seeded model whose logits are lively enough to tell wrong from right."""
    settings = (GPT2 if model_type == "gpt2" else dict(BASE)) | changes
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        # The usual small initial values give almost equal logits; biases begin at zero.
        if parameter.ndim > 1:
            parameter.data.mul_(4)
        elif name.endswith("bias"):
            parameter.data.normal_(std=0.5)
    return model


def tiny_tokenizer() -> Tokenizer:
    """A byte-level tokenizer: three special tokens, then the 256 bytes."""
    special = ["<pad>", "<s>", "</s>"]
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return tokenizer


def save_tokenizer(folder: Path, tokenizer: Tokenizer | None = None, **config: object) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    (tokenizer or tiny_tokenizer()).save(str(folder / "tokenizer.json"))
    plain = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(plain | config))


def save_checkpoint(model: PreTrainedModel, folder: Path, *, max_shard_size: str = "1GB") -> Path:
    """Write a checkpoint folder: weights, config and the tiny tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    (folder / "generation_config.json").unlink(missing_ok=True)
    save_tokenizer(folder)
    return folder


def edit_json(path: Path, **changes: object) -> None:
    """Set keys of a JSON file; it need not exist."""
    plain = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(plain | changes))


def export_tiny(checkpoint: Path, out: Path, **changes: object) -> ExportResult:
    """Export with a small grid; the parity gate runs as always."""
    out.mkdir()
    settings: dict[str, object] = {"max_model_len": LENGTH, "max_num_seqs": 4} | changes
    spec = ExportSpec(str(checkpoint), num_threads=2, **settings)  # type: ignore[arg-type]
    return export_step_graph(spec, out, lambda _line: None)


def write_tiny_gguf(path: Path, **changes: object) -> Path:
    """A llama GGUF file; `changes` replaces settings by key, None leaves one out."""
    config = tiny_model("llama").config
    settings: dict[str, object] = {
        "llama.block_count": 2,
        "llama.context_length": 256,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "llama.rope.freq_base": 10000.0,
        "general.name": "tiny",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    } | {key.replace("__", "."): value for key, value in changes.items()}
    writer = gguf.GGUFWriter(str(path), "llama")
    for key, value in settings.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
    vocab = tiny_tokenizer().get_vocab()
    tokens = [*sorted(vocab, key=lambda token: vocab[token]), "Ġa"]
    writer.add_array("tokenizer.ggml.tokens", tokens)
    writer.add_array("tokenizer.ggml.token_type", [3] * 3 + [1] * (len(tokens) - 3))
    writer.add_array("tokenizer.ggml.merges", ["Ġ a"])
    _add_tensors(writer, len(tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensors(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    rng = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        values = rng.standard_normal(shape).astype(np.float32) * 0.1
        writer.add_tensor(f"{name}.weight", values + 1 if len(shape) == 1 else values)

    add("token_embd", vocab_size, 64)
    add("output_norm", 64)
    for layer in range(2):
        for name, rows in (("attn_q", 64), ("attn_k", 32), ("attn_v", 32), ("attn_output", 64)):
            add(f"blk.{layer}.{name}", rows, 64)
        for name in ("ffn_gate", "ffn_up"):
            add(f"blk.{layer}.{name}", 96, 64)
        add(f"blk.{layer}.ffn_down", 64, 96)
        add(f"blk.{layer}.attn_norm", 64)
        add(f"blk.{layer}.ffn_norm", 64)
