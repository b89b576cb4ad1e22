"""Chunks fill buckets to the edge, and rows share a step only when that is no loss."""

from __future__ import annotations

import pytest

from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.row_choice import RowChooser, make_row
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import Request, Sequence

BLOCK_SIZE = 4


def sequence_of(num_tokens: int, num_computed: int = 0) -> Sequence:
    request = Request("r", tuple(range(num_tokens)), SamplingParams())
    sequence = Sequence.of(request, 0)
    sequence.num_computed_tokens = num_computed
    return sequence


def chooser(*shapes: tuple[Phase, int, int, int], max_chunk_tokens: int = 99) -> RowChooser:
    return RowChooser(BucketTable((Bucket(*s) for s in shapes), BLOCK_SIZE), max_chunk_tokens)


def prefill(batch: int, tokens: int, past_blocks: int = 8) -> tuple[Phase, int, int, int]:
    return (Phase.PREFILL, batch, tokens, past_blocks)


def decode(batch: int, past_blocks: int = 8) -> tuple[Phase, int, int, int]:
    return (Phase.DECODE, batch, 1, past_blocks)


def test_row_samples_only_when_it_ends_with_the_last_known_token() -> None:
    assert make_row(sequence_of(5, 2), 3).samples
    assert not make_row(sequence_of(5, 2), 2).samples
    assert make_row(sequence_of(5, 2), 2).start == 2


@pytest.mark.parametrize(
    ("num_tokens", "max_chunk_tokens", "expected"),
    [
        (40, 99, 16),  # more than any bucket: to the edge of the longest
        (16, 99, 16),  # exactly at the edges
        (8, 99, 8),
        (17, 99, 16),
        (11, 99, 11),  # the remainder
        (40, 8, 8),
        (40, 15, 8),  # the limit lies between two buckets: the shorter one is filled
        (40, 5, 5),  # below all buckets the limit still holds
    ],
)
def test_chunk_length(num_tokens: int, max_chunk_tokens: int, expected: int) -> None:
    rows = chooser(prefill(1, 8), prefill(1, 16), max_chunk_tokens=max_chunk_tokens)
    assert rows.chunk(sequence_of(num_tokens)).num_tokens == expected


def test_chunk_fits_the_buckets_that_reach_over_its_past() -> None:
    rows = chooser(prefill(1, 16, 2), prefill(1, 4, 8))
    assert rows.chunk(sequence_of(40, 8)).num_tokens == 16
    assert rows.chunk(sequence_of(40, 9)).num_tokens == 4


def test_equal_chunks_share_a_step() -> None:
    rows = chooser(prefill(1, 8), prefill(2, 8))
    first = rows.chunk(sequence_of(8))
    joined = rows.join([first], sequence_of(7))
    assert joined is not None
    assert joined.num_tokens == 7
    assert rows.pick(Phase.PREFILL, [first, joined]) == Bucket(*prefill(2, 8))


def test_short_chunk_does_not_join_where_it_would_be_padded_to_a_long_one() -> None:
    rows = chooser(prefill(1, 4), prefill(1, 16), prefill(2, 16))
    assert rows.join([rows.chunk(sequence_of(16))], sequence_of(4)) is None


def test_padding_row_is_filled_with_as_much_as_fits() -> None:
    rows = chooser(prefill(2, 4), prefill(1, 16))
    first = rows.chunk(sequence_of(3))
    joined = rows.join([first], sequence_of(16))
    assert joined is not None
    assert joined.num_tokens == 4
    assert not joined.samples


def test_no_row_joins_beyond_the_largest_batch() -> None:
    rows = chooser(prefill(2, 8))
    full = [rows.chunk(sequence_of(8)), rows.chunk(sequence_of(8))]
    assert rows.join(full, sequence_of(8)) is None


def test_row_joins_only_when_one_bucket_reaches_over_both_pasts() -> None:
    rows = chooser(prefill(2, 8, 1), prefill(1, 8, 8))
    assert rows.join([rows.chunk(sequence_of(8))], sequence_of(40, 30)) is None


def test_decode_takes_as_many_rows_as_one_bucket() -> None:
    rows = chooser(decode(1), decode(3))
    ready = [sequence_of(5, 4) for _ in range(5)]
    assert [r.sequence for r in rows.decode_rows(ready)] == ready[:3]


def test_decode_leaves_rows_out_when_the_large_batch_has_a_short_past() -> None:
    rows = chooser(decode(4, 1), decode(2, 8))
    short, long = sequence_of(4, 3), sequence_of(21, 20)
    assert len(rows.decode_rows([short] * 4)) == 4
    assert [r.sequence for r in rows.decode_rows([short, long, short, short])] == [short, long]


def test_table_that_covers_no_decode_step_is_noticed() -> None:
    with pytest.raises(AssertionError, match="require_cover"):
        chooser(decode(4, 1)).decode_rows([sequence_of(21, 20)])
