"""Seeds: uniform numbers are a pure function of seed and position."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omruntime.sampling.seeds import seed_of_choice, uniform, with_seed
from omruntime.sampling_params import MAX_SEED, SamplingParams

seeds = st.integers(0, MAX_SEED)


@given(seed=seeds, position=st.integers(0, 1 << 40))
def test_uniform_lies_in_the_half_open_unit_interval_and_repeats(seed: int, position: int) -> None:
    value = uniform(seed, position)
    assert 0.0 <= value < 1.0
    assert uniform(seed, position) == value


def test_uniform_values_are_pinned_so_that_an_upgrade_keeps_seeded_answers() -> None:
    assert [uniform(0, 0), uniform(42, 0), uniform(42, 1)] == pytest.approx(
        [0.14064728933618909, 0.40803603895070617, 0.9606864899222719], abs=1e-15
    )


def test_uniform_numbers_spread_evenly() -> None:
    values = [uniform(7, position) for position in range(4000)]
    counts = [sum(1 for v in values if i <= v * 10 < i + 1) for i in range(10)]
    assert min(counts) > 320
    assert max(counts) < 480


@given(seed=seeds)
def test_answer_0_uses_the_seed_itself_and_the_others_distinct_repeatable_ones(seed: int) -> None:
    """BL-28: n=2 gives two different but repeatable choices."""
    derived = [seed_of_choice(seed, index) for index in range(8)]
    assert derived[0] == seed
    assert len(set(derived)) == 8
    assert all(0 <= s <= MAX_SEED for s in derived)
    assert derived == [seed_of_choice(seed, index) for index in range(8)]


def test_with_seed_keeps_a_given_seed_and_0_is_one() -> None:
    """BL-28: 0 is a seed, not "unset"."""
    params = SamplingParams(seed=0)
    assert with_seed(params) is params


def test_with_seed_draws_one_where_none_is_given() -> None:
    first, second = with_seed(SamplingParams()), with_seed(SamplingParams())
    assert first.seed is not None
    assert second.seed is not None
    assert first.seed != second.seed
