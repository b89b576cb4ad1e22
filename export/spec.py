"""ExportSpec: what to export, and the shape buckets it is built for.

Owns the request and its defaults. What the checkpoint itself says (its longest context, its end
tokens) is read in `facts.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.errors import BundleError, ConfigError

# A context that chat and the shared CPU pool can afford; a longer one must be asked for.
DEFAULT_MAX_MODEL_LEN = 2048
# Beyond this the CPU's matrix work no longer gains from more rows.
DEFAULT_MAX_NUM_SEQS = 32
DEFAULT_BLOCK_SIZE = 16
# Serving warms every bucket at start, so the grids trade padding against start-up time. A padded
# prompt token costs as much as a real one, and most prompts are short: fine steps over a short
# past (first chunks, and those behind a cached beginning), coarse ones over a long past.
DECODE_BATCHES = (1, 2, 4, 8, 16, 32)
PREFILL_CHUNKS = ((1, 16), (1, 64), (1, 256), (4, 64), (8, 32))
FINE_PREFILL_CHUNKS = ((1, 32), (1, 48), (1, 96), (1, 128), (1, 192), (2, 32), (4, 32))
MAX_FINE_PAST_BLOCKS = 8
# The smallest decode past in blocks: below 64 positions attention costs nothing next to weights.
MIN_DECODE_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """One export.

    Attributes:
        checkpoint: A folder with safetensors, a GGUF file, or a Hub id (the only case that
            uses the network, and only when no such path exists).
        name: The model's name in the manifest; None takes the checkpoint's.
        max_model_len: Positions to cover; None means the model's own limit, at most 2048.
        buckets: The shape grid; None means `default_buckets`.
        allow_unproven: Let the parity gate alone decide about an architecture or setting that
            is not in the table of proven ones.
        allow_unused_tensors: Accept checkpoint tensors that the model does not read.
        num_threads: Threads for tracing and the parity gate; 0 means the libraries' choice.
    """

    checkpoint: str
    name: str | None = None
    block_size: int = DEFAULT_BLOCK_SIZE
    max_model_len: int | None = None
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    buckets: tuple[Bucket, ...] | None = None
    allow_unproven: bool = False
    allow_unused_tensors: bool = False
    num_threads: int = 0

    def __post_init__(self) -> None:
        """Check each value by itself.

        Raises:
            ConfigError: A value is out of range; the message names it.
        """
        if not self.checkpoint:
            raise ConfigError("checkpoint is empty, wanted a folder, a GGUF file or a Hub id")
        if self.block_size < 1:
            raise ConfigError(f"block_size is {self.block_size}, wanted at least 1")
        if self.max_num_seqs < 1:
            raise ConfigError(f"max_num_seqs is {self.max_num_seqs}, wanted at least 1")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigError(f"max_model_len is {self.max_model_len}, wanted at least 2")
        if self.num_threads < 0:
            raise ConfigError(f"num_threads is {self.num_threads}, wanted 0 or more")

    @property
    def path(self) -> Path:
        """The checkpoint as a local path, whether it exists or not."""
        return Path(self.checkpoint)


def blocks_for(num_positions: int, block_size: int) -> int:
    """Blocks that hold so many positions; at least 1, as no bucket has fewer."""
    return max(1, -(-num_positions // block_size))


def default_buckets(max_model_len: int, max_num_seqs: int, block_size: int) -> tuple[Bucket, ...]:
    """The bucket grid of the `cpu` profile: it covers every step up to the two limits.

    Decode: powers of two of rows and of past blocks. Prefill: chunk shapes over past blocks in
    powers of four or so, beginning with the single (empty) block of a first chunk.
    """
    longest = blocks_for(max_model_len - 1, block_size)
    batches = [b for b in DECODE_BATCHES if b < max_num_seqs] + [max_num_seqs]
    decode = [
        Bucket(Phase.DECODE, batch, 1, past)
        for batch in batches
        for past in _past_grid(MIN_DECODE_BLOCKS, 2, longest)
    ]
    prefill = [
        Bucket(Phase.PREFILL, batch, tokens, past)
        for past in _prefill_past_grid(longest)
        for batch, tokens in _prefill_chunks(past)
        if batch <= max_num_seqs
    ]
    return tuple(decode + prefill)


def require_cover(buckets: tuple[Bucket, ...], spec: ExportSpec, max_model_len: int) -> None:
    """Refuse a grid that leaves a reachable step without a bucket.

    Raises:
        ConfigError: The message names the step.
    """
    try:
        BucketTable(buckets, spec.block_size).require_cover(spec.max_num_seqs, max_model_len)
    except BundleError as error:
        raise ConfigError(str(error)) from error


def _prefill_chunks(past_blocks: int) -> tuple[tuple[int, int], ...]:
    if past_blocks > MAX_FINE_PAST_BLOCKS:
        return PREFILL_CHUNKS
    return PREFILL_CHUNKS + FINE_PREFILL_CHUNKS


def _past_grid(first: int, factor: int, longest: int) -> list[int]:
    grid = [min(first, longest)]
    while grid[-1] < longest:
        grid.append(min(grid[-1] * factor, longest))
    return grid


def _prefill_past_grid(longest: int) -> list[int]:
    return [1] if longest == 1 else [1, *_past_grid(8, 4, longest)]
