"""Small tokenizers of the two kinds in the field, and SmolLM2's own when it is installed."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from server.chat_template import ChatTemplate
from server.tokenizer import Tokenizer, TokenizerConfig

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_ID = 2


def byte_level_backend() -> tokenizers.Tokenizer:
    """Byte-level BPE: three special tokens, 256 bytes, a few merges; 268 ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("ð", "Ł"), ("ðŁ", "¦"), ("ðŁ", "ĳ")]
    merged = [left + right for left, right in merges]
    tokens = [*SPECIAL_TOKENS, *alphabet, *merged]
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    backend.add_tokens([AddedToken("<tool>", special=False)])
    return backend


METASPACE_TOKENS = (
    *("<unk>", "<bos>", "<eos>"),
    *(f"<0x{byte:02X}>" for byte in range(256)),
    *("▁", "▁▁", "▁▁▁▁", "▁Hello", "▁world", "▁,", ",", ".", "a", "é", "\ufffd", "日本", "▁a▁", ""),
)
METASPACE_DECODERS = {
    "llama": decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    ),
    "gemma": decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    ),
    "always": decoders.Metaspace(prepend_scheme="always"),
    "first": decoders.Metaspace(prepend_scheme="first"),
    "never": decoders.Metaspace(prepend_scheme="never"),
}


def metaspace_backend(decoder: str) -> tokenizers.Tokenizer:
    """A SentencePiece-like vocabulary with byte fallback and one of METASPACE_DECODERS."""
    vocab = {token: index for index, token in enumerate(METASPACE_TOKENS)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    backend.decoder = METASPACE_DECODERS[decoder]
    backend.add_special_tokens(["<unk>", "<bos>", "<eos>"])
    return backend


def tokenizer_of(backend: tokenizers.Tokenizer, template: str | None = None) -> Tokenizer:
    """A tokenizer over a backend, without a BOS token."""
    templates = {} if template is None else {"default": ChatTemplate(template, "test.jinja")}
    special_tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    return Tokenizer(backend, TokenizerConfig(None, False, special_tokens), templates)


def write_tokenizer(
    folder: Path, backend: tokenizers.Tokenizer, bos_token: str | None = None, add_bos: bool = False
) -> Path:
    """Write a tokenizer folder without templates."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "bos_token": bos_token,
        "eos_token": "<|im_end|>",
        "add_bos": add_bos,
        "special_tokens": {} if bos_token is None else {"bos_token": bos_token},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@functools.cache
def smollm2(gguf: Path) -> Tokenizer:
    """SmolLM2-135M-Instruct's tokenizer as transformers reads it from its GGUF file."""
    from transformers import AutoTokenizer

    from export.gguf_once import parse_gguf_once

    with parse_gguf_once():
        loaded = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    return tokenizer_of(loaded.backend_tokenizer, loaded.chat_template)


def letters_backend() -> tokenizers.Tokenizer:
    """One token for each of 60 letters and digits, and `<end>` with id 60."""
    letters = [chr(c) for c in range(48, 123) if chr(c).isalnum()][:60]
    vocab = {letter: index for index, letter in enumerate([*letters, "<end>"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab, []))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(["<end>"])
    return backend
