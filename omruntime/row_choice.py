"""Which rows share a step: chunk lengths, and the fit of rows to buckets.

Owns pure decisions; who holds which block is `scheduler.py`'s and `step_blocks.py`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.sequence import Sequence
from omruntime.step import RowPlan


def make_row(sequence: Sequence, num_tokens: int) -> RowPlan:
    """A row over the next `num_tokens` known tokens of a sequence."""
    start = sequence.num_computed_tokens
    samples = start + num_tokens == len(sequence.token_ids)
    return RowPlan(sequence, start, num_tokens, samples)


class RowChooser:
    """Fits rows to the buckets of one table."""

    def __init__(self, table: BucketTable, max_chunk_tokens: int) -> None:
        self._table = table
        self._max_chunk_tokens = max_chunk_tokens
        self._max_prefill_rows = table.max_batch(Phase.PREFILL)
        self.max_decode_rows = table.max_batch(Phase.DECODE)

    def pick(self, phase: Phase, rows: Rows[RowPlan]) -> Bucket | None:
        """The bucket of a step with these rows; None when no bucket takes them together."""
        block_size = self._table.block_size
        num_tokens = max(row.num_tokens for row in rows)
        past_blocks = -(-max(row.start for row in rows) // block_size)
        return self._table.pick(phase, len(rows), num_tokens, past_blocks)

    def decode_rows(self, ready: Rows[Sequence]) -> list[RowPlan]:
        """One row for each sequence, in order, as many as one decode bucket takes."""
        rows = [make_row(sequence, 1) for sequence in ready[: self.max_decode_rows]]
        while self.pick(Phase.DECODE, rows) is None:
            rows.pop()
            assert rows, "no bucket takes one decode row; see BucketTable.require_cover"
        return rows

    def chunk(self, sequence: Sequence) -> RowPlan:
        """The row that prefills a sequence alone.

        As long as the longest bucket within `max_chunk_tokens`, so that nothing is padded
        while more tokens remain; then the remainder.
        """
        past_blocks = -(-sequence.num_computed_tokens // self._table.block_size)
        return make_row(sequence, min(sequence.num_pending_tokens, self._longest(past_blocks)))

    def join(self, rows: Rows[RowPlan], sequence: Sequence) -> RowPlan | None:
        """The row with which a sequence joins a prefill step; None when it had better wait.

        It joins with its own chunk when the larger bucket costs no more than a step of its
        own, else with what fits into a place that the step would only pad.
        """
        if len(rows) >= self._max_prefill_rows:
            return None
        row = self.chunk(sequence)
        bucket, alone = self.pick(Phase.PREFILL, rows), self.pick(Phase.PREFILL, [row])
        if bucket is None or alone is None:
            return None
        if self._extra_work(rows, row, bucket) <= self._work(alone):
            return row
        cut = make_row(sequence, min(row.num_tokens, bucket.tokens))
        return cut if self._extra_work(rows, cut, bucket) <= 0 else None

    def _extra_work(self, rows: Rows[RowPlan], row: RowPlan, bucket: Bucket) -> float:
        union = self.pick(Phase.PREFILL, [*rows, row])
        return float("inf") if union is None else self._work(union) - self._work(bucket)

    def _work(self, bucket: Bucket) -> int:
        return bucket.padded_work(self._table.block_size)

    def _longest(self, past_blocks: int) -> int:
        lengths = [
            b.tokens
            for b in self._table
            if b.phase is Phase.PREFILL and b.past_blocks >= past_blocks
        ]
        within = [tokens for tokens in lengths if tokens <= self._max_chunk_tokens]
        # A limit below every bucket still holds, at the price of padding.
        return max(within, default=min(self._max_chunk_tokens, max(lengths)))
