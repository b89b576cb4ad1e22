"""Which rows share a step: chunk lengths, and the fit of rows to buckets.

Owns pure decisions over predicted costs; who holds which block is `scheduler.py`'s and
`step_blocks.py`'s business, and whether a step is prefill or decode `phase_policy.py`'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Rows

from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.costs.cost_table import CostTable
from omruntime.costs.switching import BucketChoice, Switching
from omruntime.sequence import Sequence
from omruntime.step import RowPlan

# Within a time budget a chunk may get shorter, but not cost more than this many times as much
# for each token as the best length does.
MAX_TOKEN_COST_RATIO = 1.5


def make_row(sequence: Sequence, num_tokens: int) -> RowPlan:
    """A row over the next `num_tokens` known tokens of a sequence."""
    start = sequence.num_computed_tokens
    is_end = start + num_tokens == len(sequence.token_ids)
    # Where a prompt is scored, the first token of the answer has its turn after that.
    samples = is_end and not sequence.num_unscored and not sequence.params.is_score_only
    return RowPlan(sequence, start, num_tokens, samples)


def make_score_rows(sequence: Sequence, num_rows: int) -> list[RowPlan]:
    """Rows over the next positions to score of a computed prompt, at most so many."""
    first = sequence.num_scored
    # Positions do not see each other: each has its own past, which is in the pool.
    return [
        RowPlan(sequence, p, 1, samples=p == sequence.num_prompt_tokens - 1, is_computed=True)
        for p in range(first, first + min(num_rows, sequence.num_unscored))
    ]


def bucket_phase(phase: Phase, rows: Rows[RowPlan]) -> Phase:
    """The phase of the bucket that runs rows of a phase: prompts are scored by decode buckets."""
    return Phase.DECODE if rows[0].is_computed else phase


class RowChooser:
    """Fits rows to the buckets of one table by what the buckets cost."""

    def __init__(
        self,
        table: BucketTable,
        max_chunk_tokens: int,
        costs: CostTable | None = None,
        deterministic: bool = False,
    ) -> None:
        """Take a table.

        Args:
            deterministic: Every position of a sequence is computed in the same place of the
                same chunk whatever else runs: chunks begin at multiples of one length and end
                with the prompt, answers are computed token by token, also the second time.
        """
        self.block_size = table.block_size
        self._table = table
        self._deterministic = deterministic
        self._max_chunk_tokens = max_chunk_tokens
        self._costs = costs or CostTable(table, table.block_size)
        self._switching = Switching(self._costs)
        self._prefill = [b for b in table if b.phase is Phase.PREFILL]
        self._max_prefill_rows = table.max_batch(Phase.PREFILL)
        self._decode_batches = sorted({b.batch for b in table if b.phase is Phase.DECODE})
        self.max_decode_rows = table.max_batch(Phase.DECODE)

    def pick(self, phase: Phase, rows: Rows[RowPlan]) -> Bucket | None:
        """The cheapest bucket of a step with these rows; None when no bucket takes them all."""
        return self._table.pick(phase, *self._size(rows), cost=self._costs.seconds)

    def choose_bucket(self, phase: Phase, rows: Rows[RowPlan]) -> BucketChoice:
        """The bucket that a step with these rows should run; see `Switching`."""
        cheapest = self.pick(phase, rows)
        assert cheapest is not None, "rows were chosen that no bucket takes"
        last = self._switching.last(phase)
        covers = last is not None and last.covers(*self._size(rows))
        return self._switching.choose(cheapest, covers)

    def settle(self, choice: BucketChoice) -> None:
        """A step runs in the bucket that was chosen."""
        self._switching.settle(choice)

    def seconds(self, phase: Phase, rows: Rows[RowPlan]) -> float:
        """The predicted time of a step with these rows; infinite when no bucket takes them."""
        bucket = self.pick(phase, rows)
        return math.inf if bucket is None else self._costs.seconds(bucket)

    def decode_rows(self, ready: Rows[Sequence]) -> list[RowPlan]:
        """One row for each sequence, in order, as many as one decode bucket takes.

        Fewer, if that gives more tokens a second by measurement: nine rows may be faster eight
        at a time, in turn, than in a bucket for sixteen.
        """
        return self.fastest([make_row(sequence, 1) for sequence in ready[: self.max_decode_rows]])

    def fastest(self, rows: list[RowPlan]) -> list[RowPlan]:
        """The first of these decode rows, as many as give the most tokens a second."""
        while self.pick(Phase.DECODE, rows) is None:
            rows.pop()
            assert rows, "no bucket takes one decode row; see BucketTable.require_cover"
        if not self._costs.is_complete:
            return rows
        counts = [n for n in self._decode_batches if n < len(rows)]
        return max((rows, *(rows[:n] for n in counts)), key=self._rows_a_second)

    def is_ready(self, sequence: Sequence) -> bool:
        """Whether a sequence's next step is a decode step; scores are part of the prompt's work."""
        if sequence.is_scoring:
            return False
        if self._deterministic:
            return sequence.num_prompt_tokens - sequence.num_computed_tokens <= 1
        return sequence.num_pending_tokens == 1

    def riders(self, bucket: Bucket, num_rows: int, others: Iterable[Sequence]) -> list[RowPlan]:
        """Rows of one token each, in order, for places that a step would only pad.

        A prompt gets a token on in a decode step, or several scores; an answer gets one in a
        prompt's step; at no cost.
        """
        if self._deterministic:
            return []
        reach = bucket.past_blocks * self.block_size
        num_places = bucket.batch - num_rows
        riders: list[RowPlan] = []
        for sequence in others:
            if len(riders) >= num_places:
                break
            if sequence.is_scoring:
                rows = make_score_rows(sequence, num_places - len(riders))
                riders += [row for row in rows if row.start <= reach]
            elif sequence.num_computed_tokens <= reach:
                riders.append(make_row(sequence, 1))
        return riders

    def chunk(self, sequence: Sequence, budget_s: float = math.inf) -> RowPlan:
        """The row that prefills a sequence alone.

        As long as the longest bucket within `max_chunk_tokens`, so that nothing is padded
        while more tokens remain; then the remainder. A time budget picks the longest length
        within it among those that cost little more for each token than the best one.
        """
        lengths = self._lengths(sequence)
        longest = max(lengths)
        if self._deterministic:
            num_left = sequence.num_prompt_tokens - sequence.num_computed_tokens
            return make_row(sequence, min(num_left, longest))
        if budget_s < math.inf and sequence.num_pending_tokens > min(lengths):
            longest = self._length_within(sequence, lengths, budget_s)
        return make_row(sequence, min(sequence.num_pending_tokens, longest))

    def score(self, sequence: Sequence, budget_s: float = math.inf) -> list[RowPlan]:
        """The rows that score the next positions of a sequence's prompt.

        As many as give the most rows a second by measurement: over a long past a smaller bucket
        may. With a time budget as many as fit into it, of the numbers that fill a bucket and
        cost little more for each row than the best one.
        """
        rows = make_score_rows(sequence, self.max_decode_rows)
        while self.pick(Phase.DECODE, rows) is None:
            rows.pop()
            assert rows, "no bucket takes one decode row; see BucketTable.require_cover"
        if budget_s == math.inf and not self._costs.is_complete:
            return rows
        counts = [n for n in self._decode_batches if n < len(rows)]
        seconds = {n: self.seconds(Phase.DECODE, rows[:n]) for n in (*counts, len(rows))}
        if budget_s < math.inf:
            return rows[: _most_within(seconds, budget_s)]
        return rows[: max(seconds, key=lambda n: (n / seconds[n], n))]

    def prompt_rows(self, sequence: Sequence, budget_s: float = math.inf) -> list[RowPlan]:
        """The rows of the step that gets a prompt on, alone: its next chunk, or its scores."""
        if sequence.is_scoring:
            return self.score(sequence, budget_s)
        return [self.chunk(sequence, budget_s)]

    def join(self, rows: Rows[RowPlan], sequence: Sequence) -> RowPlan | None:
        """The row with which a sequence joins a prefill step; None when it had better wait.

        It joins with its own chunk when the larger bucket costs no more than a step of its
        own, else with what fits into a place that the step would only pad.
        """
        if len(rows) >= self._max_prefill_rows:
            return None
        row, before = self.chunk(sequence), self.pick(Phase.PREFILL, rows)
        if before is None:
            return None
        before_s = self._costs.seconds(before)
        alone_s = self.seconds(Phase.PREFILL, [row])
        if self.seconds(Phase.PREFILL, [*rows, row]) - before_s <= alone_s < math.inf:
            return row
        cut = make_row(sequence, min(row.num_tokens, before.tokens))
        return cut if self.seconds(Phase.PREFILL, [*rows, cut]) <= before_s else None

    def fill_prefill(self, bucket: Bucket, row: RowPlan) -> RowPlan:
        """The same row up to the edge of the bucket, where its sequence has tokens left."""
        if self._deterministic:
            return row
        most = min(row.sequence.num_pending_tokens, bucket.tokens, self._max_chunk_tokens)
        return make_row(row.sequence, max(row.num_tokens, most))

    def reusable(self, sequence: Sequence, num_tokens: int) -> int:
        """How many of the first `num_tokens`, which others computed, a sequence should reuse.

        Fewer, in whole blocks, where computing some again fits the same chunk over a shorter
        past, in a cheaper bucket. In deterministic use whole chunks alone.
        """
        block_size = self.block_size
        if self._deterministic:
            step = math.lcm(block_size, max(self._lengths(sequence)))
            return num_tokens - num_tokens % step
        longest = max((b.tokens for b in self._prefill), default=0)
        num_known = len(sequence.token_ids)
        edges = {b.past_blocks * block_size for b in self._prefill}
        choices = [num_tokens, *(e for e in edges if num_known - longest <= e < num_tokens)]
        if num_known - num_tokens == 1 or len(choices) == 1:
            return num_tokens
        return min(choices, key=lambda start: (self._rest_seconds(num_known, start), -start))

    def _rest_seconds(self, num_known: int, start: int) -> float:
        past_blocks = -(-start // self.block_size)
        bucket = self._table.pick(
            Phase.PREFILL, 1, num_known - start, past_blocks, self._costs.seconds
        )
        return math.inf if bucket is None else self._costs.seconds(bucket)

    def _size(self, rows: Rows[RowPlan]) -> tuple[int, int, int]:
        """Rows, tokens and past blocks that a bucket must have."""
        num_tokens = max(row.num_tokens for row in rows)
        past_blocks = -(-max(row.start for row in rows) // self.block_size)
        return len(rows), num_tokens, past_blocks

    def _rows_a_second(self, rows: Rows[RowPlan]) -> tuple[float, int]:
        """Sorts numbers of decode rows: by speed, then by number."""
        return len(rows) / self.seconds(Phase.DECODE, rows), len(rows)

    def _lengths(self, sequence: Sequence) -> list[int]:
        """The chunk lengths that fill a bucket over the sequence's past."""
        past_blocks = -(-sequence.num_computed_tokens // self.block_size)
        lengths = {b.tokens for b in self._prefill if b.past_blocks >= past_blocks}
        within = [tokens for tokens in lengths if tokens <= self._max_chunk_tokens]
        # A limit below every bucket still holds, at the price of padding.
        return within or [min(self._max_chunk_tokens, max(lengths))]

    def _length_within(self, sequence: Sequence, lengths: list[int], budget_s: float) -> int:
        seconds = {n: self.seconds(Phase.PREFILL, [make_row(sequence, n)]) for n in lengths}
        return _most_within(seconds, budget_s)


def _most_within(seconds: Mapping[int, float], budget_s: float) -> int:
    """The largest number of tokens within a budget, else the least, of those that cost little.

    Args:
        seconds: What each number costs.
    """
    most = MAX_TOKEN_COST_RATIO * min(cost / n for n, cost in seconds.items())
    efficient = [n for n, cost in seconds.items() if cost / n <= most]
    return max((n for n in efficient if seconds[n] <= budget_s), default=min(efficient))
