"""Filters and draw: equal to a plain float64 reference and to transformers' warpers."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from omruntime.manifest import SamplingDefaults
from omruntime.sampling.draw import MAX_ATTEMPTS, draw_token, kept_tokens
from omruntime.sampling.logits import LogitsEditor
from omruntime.sampling.seeds import uniform
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import Request, Sequence

VOCAB_SIZE = 49152
# Scores on a coarse grid, so that ties are common.
tied_scores = st.lists(st.integers(-12, 12), min_size=1, max_size=40).map(
    lambda values: np.array(values, np.float32) / 4
)
filters = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.25, 1.0, 1.7]),
        "top_k": st.sampled_from([-1, 0, 1, 2, 5, 100]),
        "top_p": st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.03]),
        "min_p": st.sampled_from([0.0, 0.03, 0.5, 1.0]),
    }
)


def draw(scores: NDArray[np.float32], params: SamplingParams, *numbers: float) -> int:
    """The drawn token; the last number stands for all attempts that follow."""
    best_id = int(scores.argmax())
    last = len(numbers) - 1
    return draw_token(scores, params, lambda attempt: numbers[min(attempt, last)], best_id)


def resolved(**fields: float) -> SamplingParams:
    return SamplingParams(**fields).resolve(SamplingDefaults())  # type: ignore[arg-type]


def reference_kept(scores: NDArray[np.float32], params: SamplingParams) -> list[int]:
    """The rule with full sorts in float64; equal scores: the lower id counts as better."""
    assert params.temperature is not None
    assert params.top_k is not None
    assert params.top_p is not None
    assert params.min_p is not None
    scaled = scores.astype(np.float64) / params.temperature
    kept = sorted(range(len(scores)), key=lambda i: (-scaled[i], i))
    if 0 < params.top_k < len(kept):
        worst = scaled[kept[params.top_k - 1]]
        kept = [i for i in kept if scaled[i] >= worst]
    weights = np.exp(scaled - scaled.max())
    if params.top_p < 1.0:
        total, above, nucleus = weights[kept].sum(), 0.0, []
        for i in kept:
            if above < params.top_p * total:
                nucleus.append(i)
            above += weights[i]
        kept = nucleus
    return [i for i in kept if weights[i] >= params.min_p]


def has_edge_at_a_rounding(scores: NDArray[np.float32], params: SamplingParams) -> bool:
    """Whether some of the best hold `top_p` of the mass up to what a sum of float32 can tell."""
    assert params.temperature is not None
    assert params.top_k is not None
    kept = np.sort(scores.astype(np.float64) / params.temperature)[::-1]
    if 0 < params.top_k < len(kept):
        kept = kept[kept >= kept[params.top_k - 1]]
    mass = np.cumsum(np.exp(kept - kept[0]))
    return bool((np.abs(mass / mass[-1] - params.top_p) < 1e-6).any()) and params.top_p != 1.0


def kept_ids(scores: NDArray[np.float32], params: SamplingParams) -> list[int]:
    token_ids, weights = kept_tokens(scores, params)
    every = range(len(scores)) if token_ids is None else token_ids.tolist()
    return [i for i, weight in zip(every, weights, strict=True) if weight > 0]


@settings(max_examples=300)
@given(scores=tied_scores, fields=filters)
def test_filters_keep_what_the_plain_reference_keeps(
    scores: NDArray[np.float32], fields: dict[str, float]
) -> None:
    params = resolved(**fields)
    assume(not has_edge_at_a_rounding(scores, params))
    assert sorted(kept_ids(scores, params)) == sorted(reference_kept(scores, params))


def scores_of(spread: float) -> NDArray[np.float32]:
    rng = np.random.default_rng(int(spread * 10))
    return (rng.standard_normal(VOCAB_SIZE) * spread).astype(np.float32)


@pytest.mark.parametrize("spread", [0.1, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("fields", [{"top_p": 0.9}, {"top_p": 0.99, "top_k": 300}, {"min_p": 0.1}])
def test_filters_over_a_full_vocabulary_keep_what_the_plain_reference_keeps(
    spread: float, fields: dict[str, float]
) -> None:
    """Flat and peaked rows; sums of rounded weights may move the edge by a token or two."""
    scores, params = scores_of(spread), resolved(**fields)
    kept, wanted = kept_ids(scores, params), reference_kept(scores, params)
    assert len(set(kept) ^ set(wanted)) <= max(1, len(wanted) // 5000)


@pytest.mark.parametrize("spread", [2.0, 5.0])
@pytest.mark.parametrize(
    ("fields", "warper"),
    [
        ({"top_k": 50}, TopKLogitsWarper(50)),
        ({"top_p": 0.9}, TopPLogitsWarper(0.9)),
        ({"min_p": 0.05}, MinPLogitsWarper(0.05)),
    ],
)
def test_filters_keep_what_transformers_keeps(
    spread: float, fields: dict[str, float], warper: TopKLogitsWarper
) -> None:
    scores = scores_of(spread)
    warped = warper(torch.zeros(1, 1, dtype=torch.long), torch.from_numpy(scores)[None])[0]
    wanted = torch.isfinite(warped).nonzero()[:, 0].tolist()
    kept = kept_ids(scores, resolved(**fields))
    # transformers sums 49152 float32 probabilities one by one, which moves the edge of top_p.
    assert len(set(kept) ^ set(wanted)) <= len(wanted) // 500
    assert len(wanted) > 1


@settings(max_examples=200)
@given(scores=tied_scores, fields=filters)
def test_chained_filters_on_tied_scores_equal_transformers(
    scores: NDArray[np.float32], fields: dict[str, float]
) -> None:
    """The same number of tokens stays, with the same probabilities.

    Which of the tokens tied at the edge of top_p stay is arbitrary in transformers.
    """
    params = resolved(**fields)
    assume(not has_edge_at_a_rounding(scores, params))
    warped, ids = torch.from_numpy(scores)[None], torch.zeros(1, 1, dtype=torch.long)
    warped = TemperatureLogitsWarper(fields["temperature"])(ids, warped)
    if fields["top_k"] > 0:
        warped = TopKLogitsWarper(int(fields["top_k"]))(ids, warped)
    if fields["top_p"] < 1.0:
        warped = TopPLogitsWarper(fields["top_p"])(ids, warped)
    if fields["min_p"] > 0.0:
        warped = MinPLogitsWarper(fields["min_p"])(ids, warped)
    wanted = warped.softmax(dim=-1)[0].numpy()
    token_ids, weights = kept_tokens(scores, params)
    got = np.zeros(len(scores))
    got[slice(None) if token_ids is None else token_ids] = weights / weights.sum()
    np.testing.assert_allclose(np.sort(got), np.sort(wanted), atol=1e-6)
    assert set(scores[got > 0]) == set(scores[wanted > 0])


@given(
    scores=tied_scores,
    prompt=st.lists(st.integers(0, 39), min_size=1, max_size=20),
    penalty=st.sampled_from([0.5, 1.1, 1.3]),
)
def test_repetition_penalty_equals_transformers(
    scores: NDArray[np.float32], prompt: list[int], penalty: float
) -> None:
    """BL-26: over prompt and output, once for each distinct id."""
    prompt = [i % len(scores) for i in prompt]
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    wanted = processor(torch.tensor([prompt]), torch.from_numpy(scores)[None])[0].numpy()
    params = resolved(repetition_penalty=penalty)
    sequence = Sequence.of(Request("r", tuple(prompt[:1]), params), 0)
    sequence.token_ids += prompt[1:]
    row = scores.copy()
    LogitsEditor([]).apply(row, sequence)
    np.testing.assert_array_equal(row, wanted)


@pytest.mark.parametrize("fields", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}])
def test_the_narrowest_filter_keeps_the_best_token(fields: dict[str, float]) -> None:
    scores = np.array([0.0, 3.0, 1.0], np.float32)
    assert draw(scores, resolved(**fields), 0.999) == 1


@pytest.mark.parametrize("top_k", [0, -1, 3, 999_999])
def test_top_k_is_off_at_0_and_minus_1_and_from_the_vocabulary_up(top_k: int) -> None:
    """BL-24: 0 and -1 mean off, as does anything above the vocabulary."""
    token_ids, weights = kept_tokens(np.zeros(3, np.float32), resolved(top_k=top_k))
    assert token_ids is None
    assert len(set(weights.tolist())) == 1


@pytest.mark.parametrize("vocab_size", [7, 5000])
@pytest.mark.parametrize("number", [0.0, 0.5, 1.0 - 2.0**-53])
def test_a_banned_token_is_never_drawn(vocab_size: int, number: float) -> None:
    """Neither by the smallest nor by the largest number; 5000 takes the way over blocks."""
    scores = np.full(vocab_size, -np.inf, np.float32)
    scores[[2, 3]] = [1.0, 1.0]
    assert draw(scores, resolved(), number) == (2 if number < 0.5 else 3)


@pytest.mark.parametrize("number", [0.0, 1.0 - 2.0**-53])
def test_rounding_never_leads_beyond_the_tokens_with_weight(number: float) -> None:
    """The sum of a block and the running sum within it round differently."""
    for seed in range(30):
        scores = np.full(6000, -np.inf, np.float32)
        scores[1000:1700] = np.random.default_rng(seed).standard_normal(700)
        assert draw(scores, resolved(), number) == (1000 if number == 0.0 else 1699)


@pytest.mark.parametrize("vocab_size", [8, 5000])
def test_drawn_frequencies_follow_the_probabilities(vocab_size: int) -> None:
    scores = np.full(vocab_size, -np.inf, np.float32)
    scores[[0, 3, vocab_size - 1]] = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    drawn = [draw(scores, resolved(), uniform(1, i)) for i in range(3000)]
    shares = [drawn.count(i) / 3000 for i in (0, 3, vocab_size - 1)]
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.03)


@given(number=st.floats(0, 1, exclude_max=True), temperature=st.sampled_from([0.25, 1.0, 1.7]))
def test_the_draw_is_the_token_at_which_the_running_sum_passes_the_number(
    number: float, temperature: float
) -> None:
    scores, params = scores_of(2.0)[:6000], resolved(temperature=temperature)
    _, weights = kept_tokens(scores, params)
    shares = np.cumsum(weights, dtype=np.float64) / weights.sum(dtype=np.float64)
    drawn = draw(scores, params, number)
    assert shares[drawn] >= number - 1e-6
    assert drawn == 0 or shares[drawn - 1] <= number + 1e-6


def naive_draw(scores: NDArray[np.float32], params: SamplingParams, numbers: list[float]) -> int:
    """By the book: full sorts for what is kept, a full running sum for each attempt."""
    kept = reference_kept(scores, params)
    assert params.temperature is not None
    assert params.top_k is not None
    scaled = scores.astype(np.float64) / params.temperature
    among = np.arange(len(scores))
    if 0 < params.top_k < len(scores):
        among = np.flatnonzero(scores >= np.sort(scores)[-params.top_k])
    weights = np.exp(scaled - scaled.max())[among]
    mass = np.cumsum(weights)
    for number in numbers:
        choice = int(among[np.searchsorted(mass, number * mass[-1], side="right")])
        if choice in kept:
            return choice
    raise AssertionError("no attempt hits what is kept")


@settings(max_examples=300)
@given(
    scores=tied_scores,
    fields=filters,
    numbers=st.lists(st.integers(0, 996), min_size=MAX_ATTEMPTS, max_size=MAX_ATTEMPTS),
)
def test_the_draw_equals_the_naive_one_with_the_same_numbers(
    scores: NDArray[np.float32], fields: dict[str, float], numbers: list[int]
) -> None:
    params = resolved(**fields)
    # Odd shares, so that none lies on the border between two tokens.
    shares = [(n + 0.123456) / 997 for n in numbers]
    try:
        wanted = naive_draw(scores, params, shares)
    except AssertionError:
        # Every attempt was refused: the last number then picks among the kept ones.
        wanted = -1
    drawn = draw(scores, params, *shares)
    assert drawn in reference_kept(scores, params)
    if len(reference_kept(scores, params)) > 1:
        assert wanted in (-1, drawn)


@pytest.mark.parametrize("spread", [0.1, 2.0, 5.0])
@pytest.mark.parametrize("fields", [{"top_p": 0.9}, {"top_p": 0.5, "min_p": 0.01}, {"top_k": 50}])
def test_a_draw_over_a_full_vocabulary_equals_the_naive_one(
    spread: float, fields: dict[str, float]
) -> None:
    scores, params = scores_of(spread), resolved(temperature=0.8, **fields)
    for seed in range(4):
        numbers = [uniform(seed, 0, attempt) for attempt in range(MAX_ATTEMPTS)]
        try:
            wanted = naive_draw(scores, params, numbers)
        except AssertionError:
            continue
        assert draw(scores, params, *numbers) == wanted


def test_a_narrow_nucleus_of_a_flat_row_is_drawn_from_evenly() -> None:
    """Every attempt is refused, so the kept ones are listed after all."""
    scores = np.zeros(5000, np.float32)
    scores[:100] = 1.0
    params = resolved(top_p=0.01)  # fewer than those hundred
    kept = set(kept_ids(scores, params))
    drawn = [draw(scores, params, *[0.9] * MAX_ATTEMPTS, i / 50) for i in range(50)]
    assert set(drawn) <= kept
    assert len(set(drawn)) == min(50, len(kept))


def test_an_extreme_temperature_stays_finite() -> None:
    """BL-24: a tiny temperature gave inf and NaN elsewhere."""
    scores = np.array([3e38, -3e38, 1.0], np.float32)
    assert draw(scores, resolved(temperature=1.1e-5), 0.9999) == 0
    banned = np.array([-np.inf, 1.0], np.float32)
    assert draw(banned, resolved(temperature=1e300), 0.1) == 1
