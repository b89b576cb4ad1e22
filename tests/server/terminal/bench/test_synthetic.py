"""Made-up load: what a seed repeats, and what the shapes mean."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from omruntime.traffic.lengths import Fixed, Lognormal, Uniform
from server.terminal.bench.contents import TokenIds, Words
from server.terminal.bench.synthetic import (
    SharedPrefixes,
    SyntheticShape,
    synthetic_conversations,
    with_arrivals,
)
from server.terminal.bench.workload import joined

IDS = TokenIds(50, frozenset({0, 2}))
SHAPE = SyntheticShape(
    Uniform(3, 9), Lognormal(8, 1.0, 20), SharedPrefixes(4, 2, 0.5), turns=3, think_s=1.0
)


@settings(max_examples=20)
@given(st.integers(), st.floats(0.1, 100), st.floats(0.1, 10))
def test_a_seed_repeats_everything_and_the_rate_changes_arrivals_alone(
    seed: int, rate: float, burstiness: float
) -> None:
    made = synthetic_conversations(SHAPE, IDS, 4, seed)
    assert made == synthetic_conversations(SHAPE, IDS, 4, seed)
    assert made != synthetic_conversations(SHAPE, IDS, 4, seed + 1)
    arriving = with_arrivals(made, rate, burstiness, seed)
    assert arriving == with_arrivals(made, rate, burstiness, seed)
    assert [each.turns for each in arriving] == [each.turns for each in made]
    times = [each.arrival_s for each in arriving]
    assert None not in times
    assert times == sorted(times, key=lambda each: each or 0.0)


def test_more_conversations_begin_with_the_same_ones() -> None:
    assert synthetic_conversations(SHAPE, IDS, 9, 1)[:4] == synthetic_conversations(
        SHAPE, IDS, 4, 1
    )


def test_lengths_are_those_of_the_contents_and_end_tokens_stay_out() -> None:
    for each in synthetic_conversations(SHAPE, IDS, 20, 0):
        assert [len(turn.content) for turn in each.turns] == [
            turn.num_prompt_tokens for turn in each.turns
        ]
        assert each.turns[0].think_s == 0.0 < each.turns[1].think_s
        ids = joined(tuple(turn.content for turn in each.turns))
        assert {0, 2}.isdisjoint(ids)
        total = sum((t.num_prompt_tokens or 0) + t.num_output_tokens for t in each.turns)
        assert each.most_tokens == total


def test_shared_beginnings_are_of_their_number_and_share() -> None:
    shape = SyntheticShape(Fixed(5), Fixed(1), SharedPrefixes(6, 3, 0.5))
    made = synthetic_conversations(shape, IDS, 400, 0)
    begins = Counter(c.turns[0].content[:6] for c in made if len(c.turns[0].content) == 11)
    assert len(begins) == 3
    assert 150 < begins.total() < 250
    assert all(len(c.turns[0].content) in (5, 11) for c in made)


def test_words_join_to_one_text() -> None:
    shape = SyntheticShape(Fixed(3), Fixed(1), SharedPrefixes(2), turns=2)
    (made,) = synthetic_conversations(shape, Words(), 1, 0)
    first, second = made.turns
    assert (len(str(first.content).split()), len(str(second.content).split())) == (5, 3)
    assert joined((first.content, " yes", second.content)) == f"{first.content} yes{second.content}"
