"""The native passes over rows choose what NumPy's choose, on any thread and in any company."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from omruntime.native import load_library
from omruntime.sampling.draw import MAX_ATTEMPTS, draw_token, resolved_filters
from omruntime.sampling.native_rows import Filtered, NativeRows
from omruntime.sampling.numpy_rows import token_logprobs
from omruntime.sampling.seeds import uniform
from omruntime.sampling_params import SamplingParams
from omruntime.step import ScoredToken
from tests.omruntime.native.kernels import needs_library
from tests.omruntime.sampling.test_draw import (
    VOCAB_SIZE,
    filters,
    has_edge_at_a_rounding,
    resolved,
    scores_of,
    tied_scores,
)

pytestmark = needs_library

# What `native_rows.py` promises: so far from an edge, as a share of the mass, nothing differs.
EDGE = 4e-6
WAYS = (
    {},
    {"temperature": 0.7},
    {"temperature": 100.0},
    {"top_p": 0.9, "temperature": 0.8},
    {"top_p": 0.1, "temperature": 1.3},
    {"min_p": 0.02},
    {"top_k": 50, "top_p": 0.95},
    {"top_k": 5000, "min_p": 0.001},
)


@pytest.fixture(scope="module")
def native() -> NativeRows:
    return NativeRows(2)


def one_row() -> NativeRows:
    return NativeRows(1)


def numbers_of(seed: int, params: SamplingParams) -> Filtered:
    return params, lambda attempt: uniform(seed, 0, attempt)


def by_numpy(rows: NDArray[np.float32], ways: Rows[Filtered | None]) -> list[int]:
    return [
        int(row.argmax()) if way is None else draw_token(row, *way, int(row.argmax()))
        for row, way in zip(rows, ways, strict=True)
    ]


@pytest.mark.parametrize("spread", [0.1, 2.0, 5.0])
@pytest.mark.parametrize("fields", WAYS, ids=str)
def test_seeded_draws_over_a_full_vocabulary_equal_those_of_numpy(
    native: NativeRows, spread: float, fields: dict[str, float]
) -> None:
    rows = np.stack([scores_of(spread + i / 10) for i in range(4)] * 3)
    ways = [numbers_of(seed, resolved(**fields)) for seed in range(len(rows))]
    token_ids, bests = native.choose(rows, range(len(rows)), ways, is_shared=True)
    assert token_ids == by_numpy(rows, ways)
    assert bests == rows.max(axis=1).tolist()


@settings(max_examples=300)
@given(
    scores=tied_scores,
    fields=filters,
    numbers=st.lists(st.integers(0, 996), min_size=MAX_ATTEMPTS + 1, max_size=MAX_ATTEMPTS + 1),
)
def test_draws_equal_those_of_numpy_whatever_is_tied_filtered_or_refused(
    scores: NDArray[np.float32], fields: dict[str, float], numbers: list[int]
) -> None:
    params = resolved(**fields)
    assume(not has_edge_at_a_rounding(scores, params))
    # Odd shares, so that none lies on the border between two tokens.
    shares = [(n + 0.123456) / 997 for n in numbers]
    way = params, lambda attempt: shares[attempt]
    assert one_row().choose(scores[None], [0], [way], is_shared=False)[0] == by_numpy(
        scores[None], [way]
    )


@given(index=st.integers(0, 5998), temperature=st.sampled_from([0.25, 1.0, 1.7]))
def test_a_number_beside_an_edge_draws_the_token_on_its_side(
    index: int, temperature: float
) -> None:
    scores = scores_of(2.0)[:6000]
    weights = np.exp((scores.astype(np.float64) - scores.max()) / temperature)
    shares = np.cumsum(weights) / weights.sum()
    assume(shares[index + 1] - shares[index] > 2 * EDGE)
    for offset, wanted in ((-EDGE, index), (EDGE, index + 1)):
        assume(index == 0 or shares[index] - shares[index - 1] > 2 * EDGE)
        way = resolved(temperature=temperature), lambda _: shares[index] + offset  # noqa: B023
        assert one_row().choose(scores[None], [0], [way], is_shared=False)[0] == [wanted]


def test_exponentials_are_exact_to_three_units_in_the_last_place() -> None:
    """Of a best score and another one, the logarithm of the sum tells the other's exponential."""
    exponents = -np.concatenate([np.linspace(0, 15, 3000), np.logspace(-7, 0, 300)])
    rows = np.zeros((len(exponents), 2), np.float32)
    rows[:, 1] = exponents
    scored = one_row().score(
        rows, range(len(rows)), [0] * len(rows), [0] * len(rows), is_shared=False
    )
    totals = np.array([-s.logprobs.logprob for s in scored if s is not None])
    found, exact = np.expm1(totals), np.exp(rows[:, 1].astype(np.float64))
    assert np.abs(found / exact - 1).max() < 3 * 2.0**-24


@pytest.mark.parametrize("vocab_size", [1, 2, 15, 17, 255, 256, 257, 1023, 1024, 1025, 4097])
def test_rows_of_every_length_at_any_address(native: NativeRows, vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    wide = rng.standard_normal((6, vocab_size + 3)).astype(np.float32)
    wide[:, -2:] = 99.0  # beyond the rows
    rows = wide[:, 1 : 1 + vocab_size]
    ways = [numbers_of(i, resolved(top_p=0.95)) for i in range(6)]
    assert native.choose(rows, range(6), ways, is_shared=True)[0] == by_numpy(rows, ways)
    assert native.choose(rows, [4], [None], is_shared=False)[0] == [int(rows[4].argmax())]
    scored = native.score(rows, range(6), [0] * 6, [3] * 6, is_shared=True)
    for row, score in zip(rows, scored, strict=True):
        assert isinstance(score, ScoredToken)
        assert score.rank == 1 + int((row > row[0]).sum())
        wanted = token_logprobs(row, 0, 3)
        assert [i for i, _ in score.logprobs.top] == [i for i, _ in wanted.top]
        assert score.logprobs.logprob == pytest.approx(wanted.logprob, abs=1e-6)


@pytest.mark.parametrize("k", [0, 1, 5, 20, 300])
def test_the_best_are_listed_by_score_then_by_id(native: NativeRows, k: int) -> None:
    """Also with ties, and where blocks' best scores do not bound the k-th."""
    row = np.round(np.random.default_rng(k).standard_normal(40_000) * 4).astype(np.float32)
    (score,) = native.score(row[None], [0], [7], [k], is_shared=False)
    assert isinstance(score, ScoredToken)
    assert [i for i, _ in score.logprobs.top] == np.argsort(-row, kind="stable")[:k].tolist()


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ([1.0, np.nan, 2.0], np.nan),
        ([np.inf, np.nan, -np.inf], np.nan),
        ([1.0, np.inf, -np.inf], np.inf),
        ([-np.inf, -np.inf], -np.inf),
    ],
)
@pytest.mark.parametrize("place", [0, 70_000])
def test_a_row_without_a_finite_best_score_says_which(
    native: NativeRows, values: list[float], best: float, place: int
) -> None:
    row = np.full(100_000, -np.inf if best == -np.inf else 0.0, np.float32)
    row[place : place + len(values)] = values
    for way in (None, numbers_of(0, resolved(top_p=0.9))):
        _, (found,) = native.choose(row[None], [0], [way], is_shared=False)
        assert np.array_equal(found, best, equal_nan=True)
    assert native.score(row[None], [0], [0], [5], is_shared=False) == [None]


def test_infinity_of_one_sign_is_nothing_special(native: NativeRows) -> None:
    row = np.full(5000, -np.inf, np.float32)
    row[[7, 4000]] = [1.0, 1.0]
    for number, wanted in ((0.0, 7), (0.6, 4000), (1.0 - 2.0**-53, 4000)):
        way = resolved(), lambda _: number  # noqa: B023
        assert native.choose(row[None], [0], [way], is_shared=False)[0] == [wanted]


def test_company_and_threads_change_nothing(native: NativeRows) -> None:
    rows = np.stack([scores_of(1.0 + i / 4) for i in range(9)])
    ways = [
        None if i % 3 == 0 else numbers_of(i, resolved(**WAYS[i % len(WAYS)])) for i in range(9)
    ]
    together = native.choose(rows, range(9), ways, is_shared=True)
    assert native.choose(rows, range(9), ways, is_shared=False) == together
    for i in range(9):
        assert one_row().choose(rows, [i], [ways[i]], is_shared=False)[0] == together[0][i : i + 1]


@pytest.mark.parametrize("name", ["baseline", "avx2", "avx512"])
def test_every_instruction_set_draws_the_same(name: str) -> None:
    library = load_library()
    used = library.om_instruction_set()
    rows = np.stack([scores_of(1.0 + i / 4) for i in range(8)])
    ways = [numbers_of(i, resolved(**fields)) for i, fields in enumerate(WAYS)]
    wanted = by_numpy(rows, ways)
    if library.om_choose_instruction_set(name.encode()) is not None:
        pytest.skip(f"this CPU has no {name}")
    try:
        assert one_row().choose(rows, range(8), ways, is_shared=False)[0] == wanted
    finally:
        library.om_choose_instruction_set(used)


def test_filters_are_read_once_for_both_ways() -> None:
    assert resolved_filters(resolved(temperature=0.5, top_k=3, top_p=0.9)) == (2.0, 3, 0.9, 0.0)


def test_scores_need_no_copy(native: NativeRows) -> None:
    rows = np.zeros((3, VOCAB_SIZE), np.float32)
    rows[:, 5] = 1.0
    rows.flags.writeable = False
    assert native.choose(rows, range(3), [None] * 3, is_shared=False)[0] == [5, 5, 5]
