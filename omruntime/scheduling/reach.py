"""Which buckets a step can need under the limits in force.

Owns that question alone; which of them a step takes is `BucketTable.pick`'s business.
"""

from __future__ import annotations

from omruntime.buckets import Bucket, BucketTable


def reachable(
    table: BucketTable, max_num_seqs: int, max_model_len: int, max_chunk_tokens: int
) -> BucketTable:
    """The buckets without those that only sizes beyond the limits would need.

    A bucket is left out when one of less padded work covers all that it covers within the limits.
    """
    past_blocks = max(1, -(-(max_model_len - 1) // table.block_size))

    def covers_for_less(other: Bucket, bucket: Bucket) -> bool:
        batch = min(bucket.batch, max_num_seqs)
        tokens = min(bucket.tokens, max_chunk_tokens)
        return (
            other.phase is bucket.phase
            and other.padded_work(table.block_size) < bucket.padded_work(table.block_size)
            and other.covers(batch, tokens, min(bucket.past_blocks, past_blocks))
        )

    kept = [b for b in table if not any(covers_for_less(other, b) for other in table)]
    return BucketTable(kept, table.block_size)
