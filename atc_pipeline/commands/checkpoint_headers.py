"""What `plan` reads of a checkpoint through the exporter: headers, config and tokenizer.

Owns the late imports of the exporter; no weight is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from atc_pipeline.checkpoint_size import count_parameters
from atc_pipeline.commands.arguments import missing_libraries
from atc_pipeline.plan.lengths import CountTokens
from atc_pipeline.plan.model_sizes import ModelSizes
from omruntime.buckets import Bucket
from omruntime.errors import ConfigError


class _Config(Protocol):
    """What is used of transformers' PretrainedConfig besides attributes that may be absent."""

    hidden_size: int
    num_attention_heads: int
    num_hidden_layers: int
    vocab_size: int


class _Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class HeadersWanted:
    """Of which checkpoint, and for which limits; None takes what a build would take.

    Attributes:
        chars_per_token: Count tokens roughly by this; None uses the checkpoint's tokenizer.
    """

    checkpoint: str
    target: str
    block_size: int | None
    max_model_len: int | None
    max_num_seqs: int | None
    chars_per_token: float | None


@dataclass(frozen=True, slots=True)
class CheckpointHeaders:
    """What the exporter says; limits that were not given have its defaults.

    Attributes:
        warnings: What a build would say of these limits.
    """

    target: str
    sizes: ModelSizes
    block_size: int
    max_model_len: int
    max_num_seqs: int
    count_tokens: CountTokens
    warnings: tuple[str, ...]

    def default_buckets(self) -> tuple[Bucket, ...]:
        """The grid of a build without a plan."""
        from export.bucket_grids import default_buckets
        from export.profiles import profile_for_target

        profile = profile_for_target(self.target)
        return default_buckets(profile, self.max_model_len, self.max_num_seqs, self.block_size)


@contextmanager
def open_headers(wanted: HeadersWanted) -> Iterator[CheckpointHeaders]:
    """Read a checkpoint's headers; tokens can be counted until the context ends.

    Raises:
        ConfigError: There is no checkpoint, its config or headers cannot be read, a limit is
            out of range, or the export libraries are missing.
    """
    try:
        from export.build_warnings import length_warnings
        from export.checkpoint import load_tokenizer, open_checkpoint
        from export.checkpoint_files import find_checkpoint
        from export.facts import max_model_len
        from export.profiles import require_rows_fit
        from export.spec import DEFAULT_MAX_NUM_SEQS, ExportSpec
    except ImportError as error:
        raise missing_libraries(error) from error
    seqs = wanted.max_num_seqs
    spec = ExportSpec(
        checkpoint=wanted.checkpoint,
        target=wanted.target,
        block_size=wanted.block_size,
        max_model_len=wanted.max_model_len,
        max_num_seqs=DEFAULT_MAX_NUM_SEQS if seqs is None else seqs,
        # Nothing is exported here; build refuses what it cannot prove.
        allow_unproven=True,
    )
    require_rows_fit(spec.profile, spec.max_num_seqs)
    files = find_checkpoint(wanted.checkpoint)
    weights = files.folder / files.weights[0] if files.gguf else files.folder
    with open_checkpoint(files, spec) as checkpoint:
        longest = max_model_len(checkpoint.config, spec)
        yield CheckpointHeaders(
            target=wanted.target,
            sizes=model_sizes(checkpoint.config, count_parameters(weights)),
            block_size=spec.tokens_per_block,
            max_model_len=longest,
            max_num_seqs=spec.max_num_seqs,
            count_tokens=_token_counter(lambda: load_tokenizer(checkpoint), wanted.chars_per_token),
            warnings=tuple(length_warnings(checkpoint.config, longest)),
        )


def model_sizes(config: _Config, num_parameters: int | None) -> ModelSizes:
    """The sizes that a config states.

    Raises:
        ConfigError: The number of weights is unknown.
    """
    if num_parameters is None:
        raise ConfigError("the checkpoint's weights have no readable header; download them again")
    num_heads = int(config.num_attention_heads)
    return ModelSizes(
        num_layers=int(config.num_hidden_layers),
        num_heads=num_heads,
        num_kv_heads=int(getattr(config, "num_key_value_heads", None) or num_heads),
        # Absent, or present and null, means the quotient.
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // num_heads),
        hidden_size=int(config.hidden_size),
        intermediate_size=_intermediate_size(config),
        vocab_size=int(config.vocab_size),
        num_parameters=num_parameters,
        tied_head=bool(getattr(config, "tie_word_embeddings", False)),
    )


def _intermediate_size(config: _Config) -> int:
    """The widest layer of the feed-forward part; all experts of a layer are computed."""
    plain = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if not experts:
        return int(plain)
    return int(getattr(config, "moe_intermediate_size", None) or plain) * int(experts)


def _token_counter(
    load_tokenizer: Callable[[], _Tokenizer], chars_per_token: float | None
) -> CountTokens:
    if chars_per_token is not None:
        if not 0 < chars_per_token < math.inf:
            raise ConfigError(f"--chars-per-token is {chars_per_token}, wanted above 0")
        return lambda text: math.ceil(len(text) / chars_per_token)
    # Loaded with the first text: other formats need none.
    tokenizer = cache(load_tokenizer)
    return lambda text: len(tokenizer().encode(text, add_special_tokens=False))
