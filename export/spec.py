"""ExportSpec: what to export, and for which device.

Owns the request and its defaults. What the checkpoint itself says (its longest context, its end
tokens) is read in `facts.py`; what a device wants stands in `profiles.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from export.profiles import CPU, LEAST_BLOCKS, Profile, profile_for_target
from export.weight_format import WeightFormat
from omruntime.buckets import Bucket
from omruntime.errors import ConfigError

# A context that chat and the shared CPU pool can afford; a longer one must be asked for.
DEFAULT_MAX_MODEL_LEN = 2048
# Beyond this the CPU's matrix work no longer gains from more rows.
DEFAULT_MAX_NUM_SEQS = 32
DEFAULT_BLOCK_SIZE = CPU.block_size


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """One export.

    Attributes:
        checkpoint: A folder with safetensors, a GGUF file, or a Hub id (the only case that
            uses the network, and only when no such path exists).
        target: The device's own name; it decides the profile.
        name: The model's name in the manifest; None takes the checkpoint's.
        block_size: Tokens a block; None takes the profile's.
        num_blocks: The pool that programs of fixed shapes are compiled for, the null block
            included; None means room for max_num_seqs sequences of max_model_len, or for as
            many as can be counted. Must be None where the pool is free.
        max_model_len: Positions to cover; None means the model's own limit, at most 2048.
        buckets: The shape grid; None means `bucket_grids.default_buckets`.
        weights: How a bundle for the host's cores keeps the weights; None means the profile's
            own type.
        allow_unproven: Let the parity gate alone decide about an architecture or setting that
            is not in the table of proven ones.
        allow_unused_tensors: Accept checkpoint tensors that the model does not read.
        allow_clipping: Accept values beyond the target's float16 range: weights are clipped
            to it, and activations that pass it are reported instead of refused.
        num_threads: Threads for tracing and the parity gate; 0 means the libraries' choice.
    """

    checkpoint: str
    target: str = "cpu"
    name: str | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    buckets: tuple[Bucket, ...] | None = None
    weights: WeightFormat | None = None
    allow_unproven: bool = False
    allow_unused_tensors: bool = False
    allow_clipping: bool = False
    num_threads: int = 0

    def __post_init__(self) -> None:
        """Check each value by itself.

        Raises:
            ConfigError: A value is out of range; the message names it.
        """
        if not self.checkpoint:
            raise ConfigError("checkpoint is empty, wanted a folder, a GGUF file or a Hub id")
        for name, value, least in (
            ("block_size", self.block_size, 1),
            ("num_blocks", self.num_blocks, LEAST_BLOCKS),
            ("max_num_seqs", self.max_num_seqs, 1),
            ("max_model_len", self.max_model_len, 2),
        ):
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}, wanted at least {least}")
        if self.num_threads < 0:
            raise ConfigError(f"num_threads is {self.num_threads}, wanted 0 or more")
        if not self.profile.has_gears and self.num_blocks is not None:
            raise ConfigError(
                f"num_blocks is {self.num_blocks}, but the pool of target {self.target} gets its "
                f"size when serving starts; leave it out"
            )

    @property
    def path(self) -> Path:
        """The checkpoint as a local path, whether it exists or not."""
        return Path(self.checkpoint)

    @property
    def profile(self) -> Profile:
        """How to lower for the target."""
        return profile_for_target(self.target, self.weights)

    @property
    def weight_dtype(self) -> str:
        """What the bundle keeps its matrices in, the profile's default filled in."""
        return self.weights.value if self.weights else self.profile.dtype

    @property
    def tokens_per_block(self) -> int:
        """The block size, the profile's default filled in."""
        return self.block_size or self.profile.block_size
