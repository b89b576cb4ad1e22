"""Which steps the parity gate runs: every bucket, and contexts on both sides of every edge.

Pure choice of numbers; running and comparing is `parity.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

from export.paged_runner import Row
from omruntime.buckets import Bucket, BucketTable, Phase


@dataclass(frozen=True, slots=True)
class Step:
    """One run of the graph: a bucket and its real rows, at least one."""

    bucket: Bucket
    rows: tuple[Row, ...]


def edge_positions(buckets: Sequence[Bucket], block_size: int, length: int) -> list[int]:
    """Positions 0, 1 and those one before, at and one after every bucket's last past position."""
    edges = {bucket.past_blocks * block_size for bucket in buckets}
    near = {0, 1} | {edge + delta for edge in edges for delta in (-1, 0, 1)}
    return sorted(p for p in near | {length - 1} if 0 <= p < length)


def steps_to_prove(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Every decode bucket, every prefill past once, every chunk shape over least and most past.

    The rest are the same graph in shapes between these, and long chunks are what costs.
    """
    prefill = [b for b in buckets if b.phase is Phase.PREFILL]
    smallest = min((b.batch * b.tokens for b in prefill), default=0)
    pasts = {b.past_blocks for b in prefill}
    return [
        b
        for b in buckets
        if b.phase is Phase.DECODE
        or b.batch * b.tokens == smallest
        or b.past_blocks in (min(pasts), max(pasts))
    ]


def chunked_prefill(token_ids: Sequence[int], table: BucketTable) -> Iterator[Step]:
    """The sequence in chunks of short, single-token, full and nearly full length."""
    sizes = sorted({b.tokens for b in table if b.phase is Phase.PREFILL})
    lengths = cycle([sizes[0] - 1, 1, sizes[len(sizes) // 2], sizes[-1], sizes[-1] - 1])
    past = 0
    while past < len(token_ids):
        blocks = max(1, -(-past // table.block_size))
        # A grid may take long chunks over short pasts only.
        length = max(1, min(next(lengths), table.max_tokens(blocks)))
        chunk = tuple(token_ids[past : past + length])
        bucket = table.pick(Phase.PREFILL, 1, len(chunk), blocks)
        assert bucket is not None, "the table covers every prefill chunk"
        yield Step(bucket, (Row(0, chunk, past),))
        past += len(chunk)


def chunk_ends(token_ids: Sequence[int], table: BucketTable) -> list[int]:
    """The last position of every chunk of `chunked_prefill`."""
    return [
        step.rows[0].past_len + len(step.rows[0].token_ids) - 1
        for step in chunked_prefill(token_ids, table)
    ]


def bucket_steps(
    token_ids: Sequence[int], ends: Sequence[int], buckets: Sequence[Bucket], block_size: int
) -> Iterator[Step]:
    """One step for each bucket, over a sequence whose cache is filled.

    The rows end at positions of `ends`, the latest first; a bucket of several rows keeps its
    last one as padding.
    """
    for bucket in buckets:
        num_rows = max(1, bucket.batch - 1)
        rows = []
        for i, (past, end) in enumerate(_spans(ends, bucket, block_size)):
            if i == num_rows:
                break
            rows.append(Row(0, tuple(token_ids[past : end + 1]), past))
        if rows:
            yield Step(bucket, tuple(rows))


def _spans(ends: Sequence[int], bucket: Bucket, block_size: int) -> Iterator[tuple[int, int]]:
    """First and last new position of rows that fit the bucket."""
    most = bucket.past_blocks * block_size
    for i, end in enumerate(sorted(ends, reverse=True)):
        # Rows of one step differ in length, so that padding tokens occur.
        tokens = min(end + 1, max(1, bucket.tokens - i % 3))
        past = end + 1 - tokens
        if past <= most:
            yield past, end
