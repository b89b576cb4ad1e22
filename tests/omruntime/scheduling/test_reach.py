"""Only what the limits in force can need is warmed up and picked from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.scheduling.reach import reachable

BLOCK_SIZE = 16
GRID = (
    *(Bucket(Phase.DECODE, batch, 1, past) for batch in (1, 4, 16) for past in (4, 16, 64)),
    *(Bucket(Phase.PREFILL, batch, 32, past) for batch in (1, 4) for past in (1, 16, 64)),
    Bucket(Phase.PREFILL, 1, 128, 64),
)


def test_everything_is_reachable_at_the_limits_of_the_bundle() -> None:
    table = BucketTable(GRID, BLOCK_SIZE)
    assert set(reachable(table, 16, 1024, 128)) == set(GRID)


def test_longer_pasts_and_larger_batches_are_left_out() -> None:
    table = reachable(BucketTable(GRID, BLOCK_SIZE), 3, 257, 32)
    assert {(b.phase, b.batch, b.past_blocks) for b in table} == {
        (phase, batch, past)
        for phase in Phase
        for batch in (1, 4)
        for past in ((4, 16) if phase is Phase.DECODE else (1, 16))
    }
    # 258 positions reach past the sixteenth block.
    assert max(b.past_blocks for b in reachable(BucketTable(GRID, BLOCK_SIZE), 3, 258, 128)) == 64


@given(
    st.integers(1, 16), st.integers(2, 1024), st.integers(1, 128), st.sampled_from(Phase), st.data()
)
def test_every_step_within_the_limits_keeps_its_cheapest_bucket(
    max_num_seqs: int, max_model_len: int, max_chunk_tokens: int, phase: Phase, data: st.DataObject
) -> None:
    table = BucketTable(GRID, BLOCK_SIZE)
    narrow = reachable(table, max_num_seqs, max_model_len, max_chunk_tokens)
    batch = data.draw(st.integers(1, max_num_seqs))
    tokens = 1 if phase is Phase.DECODE else data.draw(st.integers(1, max_chunk_tokens))
    past = data.draw(st.integers(0, -(-(max_model_len - 1) // BLOCK_SIZE)))
    assert narrow.pick(phase, batch, tokens, past) == table.pick(phase, batch, tokens, past)
