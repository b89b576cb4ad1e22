"""Settings and manifest brought together: what this process may do with this bundle."""

from __future__ import annotations

from dataclasses import dataclass

from omruntime.errors import ConfigError
from omruntime.manifest import Manifest
from omruntime.settings import DEFAULT_KV_MEMORY_MIB, MIB, EngineSettings


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The limits in force.

    Attributes:
        num_blocks: Blocks in the pool, the null block included.
        max_model_len: Most positions of one sequence.
        max_chunk_tokens: Longest prefill chunk.
    """

    num_blocks: int
    max_num_seqs: int
    max_model_len: int
    max_chunk_tokens: int
    max_queued_requests: int
    max_queued_tokens: int


def resolve_limits(settings: EngineSettings, manifest: Manifest) -> EngineLimits:
    """Settle every limit that the settings leave to the bundle.

    Raises:
        ConfigError: A setting passes what the bundle was built for.
        BundleError: The buckets do not cover every step within the limits.
    """
    model = manifest.model
    max_num_seqs = _within("max_num_seqs", settings.max_num_seqs, model.max_num_seqs)
    max_model_len = _within("max_model_len", settings.max_model_len, model.max_model_len)
    table = manifest.bucket_table()
    table.require_cover(max_num_seqs, max_model_len)
    longest_chunk = table.max_tokens(past_blocks=1)
    return EngineLimits(
        num_blocks=_num_blocks(settings, manifest, max_num_seqs, max_model_len),
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        max_chunk_tokens=_within("max_chunk_tokens", settings.max_chunk_tokens, longest_chunk),
        max_queued_requests=settings.max_queued_requests,
        max_queued_tokens=settings.max_queued_tokens,
    )


def longest_served(limits: EngineLimits, manifest: Manifest) -> int:
    """Most tokens that one sequence can have with these limits."""
    return longest_sequence(limits.max_model_len, limits.num_blocks - 1, manifest.kv.block_size)


def longest_sequence(max_model_len: int, num_usable_blocks: int, block_size: int) -> int:
    """Most tokens that one sequence can have when it is alone in a pool of so many blocks."""
    # The last token of a sequence is never computed and needs no position.
    return min(max_model_len, num_usable_blocks * block_size + 1)


def _within(name: str, wanted: int | None, most: int) -> int:
    if wanted is None:
        return most
    if wanted > most:
        raise ConfigError(
            f"{name} is {wanted}, the bundle was built for at most {most}; lower it, or build "
            f"the bundle with a larger limit"
        )
    return wanted


def _num_blocks(
    settings: EngineSettings, manifest: Manifest, max_num_seqs: int, max_model_len: int
) -> int:
    if manifest.kv.num_blocks is not None:
        return _fixed_blocks(settings, manifest.kv.num_blocks, manifest.kv.bytes_per_block)
    if settings.num_blocks is not None:
        return settings.num_blocks
    affordable = settings.kv_memory_mib * MIB // manifest.kv.bytes_per_block
    if affordable < 2:
        raise ConfigError(
            f"kv_memory_mib is {settings.kv_memory_mib}, wanted room for two blocks of "
            f"{manifest.kv.bytes_per_block:,} bytes; raise it"
        )
    # More than every sequence at its longest could never be used; plus the null block.
    usable = max_num_seqs * -(-max_model_len // manifest.kv.block_size) + 1
    return min(affordable, usable)


def _fixed_blocks(settings: EngineSettings, num_blocks: int, bytes_per_block: int) -> int:
    """The blocks that the programs were compiled for; nothing else runs."""
    reason = (
        f"the bundle's programs were compiled for a pool of {num_blocks} blocks "
        f"({num_blocks * bytes_per_block // MIB:,} MiB); leave it out, or build the bundle with "
        f"another --num-blocks"
    )
    if settings.num_blocks not in (None, num_blocks):
        raise ConfigError(f"num_blocks is {settings.num_blocks}: {reason}")
    is_asked = settings.num_blocks is None and settings.kv_memory_mib != DEFAULT_KV_MEMORY_MIB
    if is_asked and settings.kv_memory_mib * MIB // bytes_per_block != num_blocks:
        raise ConfigError(f"kv_memory_mib is {settings.kv_memory_mib}: {reason}")
    return num_blocks
