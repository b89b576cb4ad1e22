"""Chunks fill buckets to the edge, and rows share a step only when that is no loss."""

from __future__ import annotations

import pytest

from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.costs.cost_table import CostTable
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.row_choice import RowChooser, make_row
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


# By measured cost


def measured(costs: dict[tuple[Phase, int, int, int], float], **others: bool) -> RowChooser:
    table = BucketTable((Bucket(*s) for s in costs), BLOCK_SIZE)
    known = CostTable(table, BLOCK_SIZE)
    for shape, seconds in costs.items():
        known.measure(Bucket(*shape), seconds)
    return RowChooser(table, 99, known, **others)


def test_fewer_rows_are_decoded_where_that_gives_more_tokens_a_second() -> None:
    rows = measured({decode(2): 0.1, decode(8): 0.3, prefill(1, 8): 1.0})
    ready = [sequence_of(5, 4) for _ in range(8)]
    assert len(rows.decode_rows(ready[:3])) == 2
    assert len(rows.decode_rows(ready[:6])) == 6  # as fast as in turn, and everybody at once
    assert len(rows.decode_rows(ready[:8])) == 8


def test_a_budget_shortens_chunks_and_never_wastes_much() -> None:
    rows = measured({prefill(1, 4): 0.9, prefill(1, 8): 1.1, prefill(1, 16): 2.0, decode(1): 1.0})
    long = sequence_of(40)
    assert rows.chunk(long).num_tokens == 16
    assert rows.chunk(long, budget_s=1.5).num_tokens == 8
    assert rows.chunk(long, budget_s=1.0).num_tokens == 8, "4 would cost twice as much a token"
    assert rows.chunk(sequence_of(3), budget_s=0.1).num_tokens == 3


def test_chunk_grows_to_the_edge_of_the_chosen_bucket() -> None:
    rows = measured({prefill(1, 4): 2.0, prefill(1, 16): 1.0, decode(1): 1.0})
    row = make_row(sequence_of(12), 4)
    bucket = rows.pick(Phase.PREFILL, [row])
    assert bucket == Bucket(*prefill(1, 16))
    assert rows.fill_prefill(bucket, row).num_tokens == 12
    assert rows.fill_prefill(bucket, row).samples


def test_riders_take_only_places_that_would_be_padded_and_reach() -> None:
    rows = measured({decode(4, 2): 1.0, prefill(1, 8): 1.0})
    near, far = sequence_of(20, 4), sequence_of(40, 20)
    bucket = Bucket(*decode(4, 2))
    assert [r.sequence for r in rows.riders(bucket, 2, [far, near, near, near])] == [near, near]
    assert rows.riders(bucket, 4, [near]) == []


def test_a_few_tokens_are_computed_again_for_a_cheaper_bucket() -> None:
    """Twelve cached blocks need the long past; ten of them fit the short one and one chunk."""
    rows = measured({prefill(1, 16, 10): 1.0, prefill(1, 16, 40): 3.0, decode(1, 40): 1.0})
    sequence = sequence_of(54)
    assert rows.reusable(sequence, 48) == 40
    assert rows.reusable(sequence, 36) == 36, "fits as it is"
    assert rows.reusable(sequence_of(49), 48) == 48, "one token is left, a decode step"
    assert rows.reusable(sequence_of(70), 64) == 64, "the rest would not fit one chunk"
    equal = measured({prefill(1, 16, 10): 1.0, prefill(1, 16, 40): 1.0, decode(1, 40): 1.0})
    assert equal.reusable(sequence, 48) == 48


def test_deterministic_reuse_is_in_whole_chunks() -> None:
    rows = measured({prefill(1, 16, 40): 1.0, decode(1, 40): 1.0}, deterministic=True)
    assert rows.reusable(sequence_of(54), 47) == 32
    assert rows.reusable(sequence_of(54), 12) == 0
