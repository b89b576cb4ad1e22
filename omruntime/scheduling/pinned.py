"""One bucket for each phase, so that a request's numbers do not depend on who else runs."""

from __future__ import annotations

from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.limits import EngineLimits


def pin_buckets(table: BucketTable, limits: EngineLimits) -> BucketTable:
    """The table with one decode and one prefill bucket left, each over the longest past.

    What `deterministic` costs: a single row pays for the largest decode batch, a short prompt
    for the longest chunk, and both for the longest past.

    Args:
        table: Covers every step within the limits, see `BucketTable.require_cover`.
    """
    past_blocks = max(1, -(-(limits.max_model_len - 1) // table.block_size))
    # Where more may run than a bucket takes, they decode in turn.
    batch = min(limits.max_num_seqs, table.max_batch(Phase.DECODE))
    decode = table.pick(Phase.DECODE, batch, 1, past_blocks)
    assert decode is not None, "the table was not checked, see BucketTable.require_cover"
    return BucketTable([decode, _prefill(table, past_blocks, limits)], table.block_size)


def _prefill(table: BucketTable, past_blocks: int, limits: EngineLimits) -> Bucket:
    """The bucket of the longest chunk within the limit; of those, the one of least work."""
    reaching = [b for b in table if b.phase is Phase.PREFILL and b.past_blocks >= past_blocks]
    lengths = {b.tokens for b in reaching}
    within = [tokens for tokens in lengths if tokens <= limits.max_chunk_tokens]
    wanted = max(within, default=min(lengths))
    return next(b for b in reaching if b.tokens == wanted)
