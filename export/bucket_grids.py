"""The default bucket grids: which shapes a model is built for when nobody says otherwise.

Owns the grids and the proof that a grid covers every reachable step. A grid fitted to a workload
comes from the planner and replaces these.
"""

from __future__ import annotations

from export.profiles import Profile
from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.errors import BundleError, ConfigError

# Serving warms every bucket at start, so the grids trade padding against start-up time. A padded
# prompt token costs as much as a real one, and most prompts are short: fine steps over a short
# past (first chunks, and those behind a cached beginning), coarse ones over a long past.
DECODE_BATCHES = (1, 2, 4, 8, 16, 32)
PREFILL_CHUNKS = ((1, 16), (1, 64), (1, 256), (4, 64), (8, 32))
FINE_PREFILL_CHUNKS = ((1, 32), (1, 48), (1, 96), (1, 128), (1, 192), (2, 32), (4, 32))
MAX_FINE_PAST_BLOCKS = 8
# The smallest decode past in blocks: below 64 positions attention costs nothing next to weights.
MIN_DECODE_BLOCKS = 4
# Each gear is compiled as a graph of its own; the manual recommends few of them (2 to 100 are
# possible). Source: hicann/ge, docs/zh/user_guides/atc_shape_configuration_guide.md.
GEAR_BATCHES = (1, 4, 16)
GEAR_CHUNKS = (32, 128, 512)
# A gear over a shorter past pays where it saves at least this factor of gathered positions.
GEAR_PAST_FACTOR = 4


def default_buckets(
    profile: Profile, max_model_len: int, max_num_seqs: int, block_size: int
) -> tuple[Bucket, ...]:
    """A profile's bucket grid: it covers every step up to the two limits."""
    longest = blocks_for(max_model_len - 1, block_size)
    if profile.has_gears:
        return _gears(longest, max_num_seqs, max_model_len)
    return _cpu_buckets(longest, max_num_seqs)


def blocks_for(num_positions: int, block_size: int) -> int:
    """Blocks that hold so many positions; at least 1, as no bucket has fewer."""
    return max(1, -(-num_positions // block_size))


def require_cover(
    buckets: tuple[Bucket, ...], block_size: int, max_num_seqs: int, max_model_len: int
) -> None:
    """Refuse a grid that leaves a reachable step without a bucket, or has one that cannot run.

    Raises:
        ConfigError: The message names the step or the bucket.
    """
    for bucket in buckets:
        if bucket.past_blocks < 1:
            raise ConfigError(
                f"the {bucket.phase.value} bucket of {bucket.batch}x{bucket.tokens} has "
                f"past_blocks 0, wanted at least 1, as a graph reads a block table in every step; "
                f"in that of a first chunk all blocks are the null block"
            )
    try:
        BucketTable(buckets, block_size).require_cover(max_num_seqs, max_model_len)
    except BundleError as error:
        raise ConfigError(str(error)) from error


def _cpu_buckets(longest: int, max_num_seqs: int) -> tuple[Bucket, ...]:
    """Many shapes, as padding costs and a shape does not.

    Decode: powers of two of rows and of past blocks. Prefill: chunk shapes over past blocks in
    powers of four or so, beginning with the single (empty) block of a first chunk.
    """
    decode = [
        Bucket(Phase.DECODE, batch, 1, past)
        for batch in _up_to(DECODE_BATCHES, max_num_seqs)
        for past in _past_grid(MIN_DECODE_BLOCKS, 2, longest)
    ]
    prefill = [
        Bucket(Phase.PREFILL, batch, tokens, past)
        for past in ([1] if longest == 1 else [1, *_past_grid(8, 4, longest)])
        for batch, tokens in _prefill_chunks(past)
        if batch <= max_num_seqs
    ]
    return tuple(decode + prefill)


def _prefill_chunks(past_blocks: int) -> tuple[tuple[int, int], ...]:
    if past_blocks > MAX_FINE_PAST_BLOCKS:
        return PREFILL_CHUNKS
    return PREFILL_CHUNKS + FINE_PREFILL_CHUNKS


def _gears(longest: int, max_num_seqs: int, max_model_len: int) -> tuple[Bucket, ...]:
    """Few shapes: rows and chunks in steps of four, each over a short and the longest past."""
    short = max(1, longest // GEAR_PAST_FACTOR)
    decode = [
        Bucket(Phase.DECODE, batch, 1, past)
        for batch in _up_to(GEAR_BATCHES, max_num_seqs)
        for past in sorted({short, longest})
    ]
    # A chunk needs no more tokens than a sequence has; 2 is the least that is one.
    longest_chunk = min(GEAR_CHUNKS[-1], max(2, max_model_len))
    prefill = [
        Bucket(Phase.PREFILL, 1, tokens, past)
        for past in sorted({1, longest})
        for tokens in _up_to(GEAR_CHUNKS, longest_chunk)
    ]
    return tuple(decode + prefill)


def _up_to(steps: tuple[int, ...], last: int) -> list[int]:
    return [step for step in steps if step < last] + [last]


def _past_grid(first: int, factor: int, longest: int) -> list[int]:
    grid = [min(first, longest)]
    while grid[-1] < longest:
        grid.append(min(grid[-1] * factor, longest))
    return grid
