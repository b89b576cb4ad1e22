"""Sampler: whole steps, failures of single rows, seeds, log-probabilities."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from omruntime.manifest import SamplingDefaults
from omruntime.sampling.native_rows import NativeRows
from omruntime.sampling.numpy_rows import token_logprobs
from omruntime.sampling.sampler import Sampler
from omruntime.sampling_params import MAX_LOGPROBS, SamplingParams
from omruntime.sequence import Request, Sequence
from omruntime.step import RowPlan, SampledToken, SamplingFailure, ScoredToken
from tests.omruntime.native.kernels import needs_library

VOCAB_SIZE = 50
EOS = 2
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(params=["numpy", pytest.param("native", marks=needs_library)])
def native(request: pytest.FixtureRequest) -> NativeRows | None:
    """Both ways over rows are one sampler to everybody else."""
    return NativeRows(1) if request.param == "native" else None


@pytest.fixture
def sampler(native: NativeRows | None) -> Sampler:
    return Sampler(VOCAB_SIZE, [EOS], native)


def sequence_of(params: SamplingParams, prompt: tuple[int, ...] = (1,)) -> Sequence:
    return Sequence.of(Request("r", prompt, params.resolve(SamplingDefaults())), 0)


def logits_of(num_rows: int, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((num_rows, VOCAB_SIZE)) * 2).astype(np.float32)


def generate(sampler: Sampler, neighbours: list[Sequence], preempt_at: int = -1) -> list[int]:
    """Sixteen steps of a seeded request as the first or last row among neighbours."""
    ours = sequence_of(SamplingParams(temperature=0.8, seed=42))
    for step in range(16):
        rows = logits_of(1 + len(neighbours), seed=step)
        place = step % (1 + len(neighbours))
        rows[place] = logits_of(1, seed=1000 + step)[0]
        batch = [*neighbours[:place], ours, *neighbours[place:]]
        if step == preempt_at:
            ours.num_computed_tokens = 0
        for sequence, token in zip(batch, sampler.sample(rows, batch), strict=True):
            assert isinstance(token, SampledToken)
            sequence.token_ids.append(token.token_id)
    return ours.token_ids[1:]


def test_greedy_rows_take_the_first_of_the_best(sampler: Sampler) -> None:
    logits = logits_of(3)
    logits[1, [7, 9]] = 50.0
    tokens = sampler.sample(logits, [sequence_of(GREEDY)] * 3)
    assert tokens == [SampledToken(int(i)) for i in logits.argmax(axis=1)]
    assert tokens[1] == SampledToken(7)


def test_padding_rows_and_columns_are_ignored_and_the_input_is_not_changed(
    sampler: Sampler,
) -> None:
    logits = np.zeros((4, VOCAB_SIZE + 6), np.float32)
    logits[:, VOCAB_SIZE:] = 99.0
    logits[3] = np.nan
    logits[:, 5] = 1.0
    before = logits.copy()
    logits.flags.writeable = False
    params = SamplingParams(temperature=0.0, repetition_penalty=1.5, logit_bias={5: -50.0, 6: 9.0})
    sequences = [sequence_of(GREEDY), sequence_of(params), sequence_of(SamplingParams(seed=1))]
    tokens = sampler.sample(logits, sequences)
    assert tokens[:2] == [SampledToken(5), SampledToken(6)]
    assert isinstance(tokens[2], SampledToken)
    assert tokens[2].token_id < VOCAB_SIZE
    np.testing.assert_array_equal(logits, before)


def test_no_sequence_gives_no_token(sampler: Sampler) -> None:
    assert sampler.sample(logits_of(2), []) == []


def test_float16_logits_are_accepted(sampler: Sampler) -> None:
    logits = logits_of(2).astype(np.float16)
    tokens = sampler.sample(logits, [sequence_of(GREEDY)] * 2)
    assert tokens == [SampledToken(int(i)) for i in logits.argmax(axis=1)]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=3, top_p=0.9)])
def test_a_bad_logit_fails_its_own_row_only(
    sampler: Sampler, bad: float, params: SamplingParams
) -> None:
    """BL-10: one NaN or infinite logit fails that request, other rows go on."""
    logits = logits_of(3)
    logits[1, 20] = bad
    tokens = sampler.sample(logits, [sequence_of(params)] * 3)
    assert [type(t) for t in tokens] == [SampledToken, SamplingFailure, SampledToken]
    assert isinstance(tokens[1], SamplingFailure)
    assert str(bad) in tokens[1].reason


def test_a_row_without_any_finite_logit_fails(sampler: Sampler) -> None:
    logits = np.full((1, VOCAB_SIZE), -np.inf, np.float32)
    (token,) = sampler.sample(logits, [sequence_of(GREEDY)])
    assert isinstance(token, SamplingFailure)


def test_params_that_leave_nothing_to_choose_fail_with_their_names(sampler: Sampler) -> None:
    params = SamplingParams(temperature=0.0, allowed_token_ids=(EOS,), min_new_tokens=3)
    (token,) = sampler.sample(logits_of(1), [sequence_of(params)])
    assert isinstance(token, SamplingFailure)
    assert "min_new_tokens" in token.reason


def test_a_penalty_that_overflows_fails_instead_of_drawing_from_nan(sampler: Sampler) -> None:
    params = SamplingParams(seed=1, repetition_penalty=1e-300)
    logits = np.full((1, VOCAB_SIZE), 1e9, np.float32)
    (token,) = sampler.sample(logits, [sequence_of(params)])
    assert isinstance(token, SamplingFailure)
    assert "repetition_penalty" in token.reason


def test_a_bias_of_minus_100_leaves_the_runner_up(sampler: Sampler) -> None:
    """BL-25: the best token biased away gives the second best."""
    logits = logits_of(1)
    best, runner_up = np.argsort(-logits[0])[:2]
    params = SamplingParams(temperature=0.0, logit_bias={int(best): -100.0})
    tokens = sampler.sample(logits, [sequence_of(params)])
    assert tokens == [SampledToken(int(runner_up))]


def test_a_seeded_request_draws_the_same_tokens_in_any_company(sampler: Sampler) -> None:
    """BL-28: alone, beside an unseeded one, beside 15 others, preempted."""
    alone = generate(sampler, [])
    crowd = [sequence_of(SamplingParams(seed=i, top_p=0.9)) for i in range(15)]
    assert len(set(alone)) > 3
    assert generate(sampler, crowd[:1]) == alone
    assert generate(sampler, crowd) == alone
    assert generate(sampler, crowd, preempt_at=7) == alone


def test_equal_seeds_draw_another_number_at_each_position(sampler: Sampler) -> None:
    sequence = sequence_of(SamplingParams(seed=5))
    drawn = set()
    for _ in range(20):
        (token,) = sampler.sample(np.zeros((1, VOCAB_SIZE), np.float32), [sequence])
        assert isinstance(token, SampledToken)
        sequence.token_ids.append(token.token_id)
        drawn.add(token.token_id)
    assert len(drawn) > 10


def test_logprobs_are_of_the_raw_logits_whatever_the_params_do(sampler: Sampler) -> None:
    """BL-27: k alternatives beside the chosen token; before bias and temperature."""
    logits = logits_of(1)
    params = SamplingParams(temperature=0.0, logit_bias={30: 100.0}, logprobs=3)
    (token,) = sampler.sample(logits, [sequence_of(params)])
    wanted = torch.from_numpy(logits[0]).log_softmax(dim=-1).numpy()
    order = np.argsort(-wanted)[:3]
    assert isinstance(token, SampledToken)
    assert token.token_id == 30
    assert token.logprobs is not None
    assert token.logprobs.logprob == pytest.approx(wanted[30], abs=1e-5)
    assert [i for i, _ in token.logprobs.top] == order.tolist()
    assert [p for _, p in token.logprobs.top] == pytest.approx(wanted[order], abs=1e-5)


@pytest.mark.parametrize("k", range(MAX_LOGPROBS + 1))
def test_logprobs_at_every_allowed_k(k: int) -> None:
    """BL-27: exactly k, best first, whatever shortcut a large vocabulary takes."""
    row = np.random.default_rng(k).standard_normal(5000).astype(np.float32)
    wanted = torch.from_numpy(row).double().log_softmax(dim=-1).numpy()
    found = token_logprobs(row, 77, k)
    order = np.argsort(-row, kind="stable")[:k]
    assert [i for i, _ in found.top] == order.tolist()
    assert [p for _, p in found.top] == pytest.approx(wanted[order], abs=1e-5)
    assert found.logprob == pytest.approx(wanted[77], abs=1e-5)


def test_logprobs_of_scores_as_far_apart_as_floats_get(sampler: Sampler) -> None:
    logits = np.full((1, VOCAB_SIZE), -3e38, np.float32)
    logits[0, 7] = 3e38
    params = SamplingParams(temperature=0.0, logprobs=1)
    (token,) = sampler.sample(logits, [sequence_of(params)])
    assert isinstance(token, SampledToken)
    assert token.logprobs is not None
    assert token.logprobs.top == ((7, 0.0),)


def test_logprobs_0_gives_the_chosen_token_only(sampler: Sampler) -> None:
    """BL-27: 0 is not off."""
    params = SamplingParams(temperature=0.0, logprobs=0)
    (token,) = sampler.sample(logits_of(1), [sequence_of(params)])
    assert isinstance(token, SampledToken)
    assert token.logprobs is not None
    assert token.logprobs.top == ()


def score_of(
    native: NativeRows | None, row: list[float], token_id: int, k: int
) -> ScoredToken | SamplingFailure:
    """The score of the second token of a prompt after a row of logits."""
    params = SamplingParams(max_new_tokens=0, prompt_logprobs=k)
    sequence = Sequence.of(Request("r", (0, token_id), params), 0)
    plan = RowPlan(sequence, 0, 1, samples=False, is_computed=True)
    (score,) = Sampler(len(row), [EOS], native).score(np.array([row], np.float32), [plan])
    return score


def test_a_score_has_logprob_rank_and_the_best(native: NativeRows | None) -> None:
    score = score_of(native, [1.0, 3.0, 2.0, 2.0], 3, 2)
    assert isinstance(score, ScoredToken)
    wanted = torch.tensor([1.0, 3.0, 2.0, 2.0]).log_softmax(dim=-1).tolist()
    assert score.logprobs.logprob == pytest.approx(wanted[3], abs=1e-6)
    assert [i for i, _ in score.logprobs.top] == [1, 2]
    assert score.rank == 2, "equal ones share the better rank"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_score_of_no_numbers_is_a_failure(native: NativeRows | None, bad: float) -> None:
    assert isinstance(score_of(native, [1.0, bad, 2.0], 0, 0), SamplingFailure)


def test_equal_logprobs_are_listed_by_lower_id() -> None:
    row = np.zeros(VOCAB_SIZE, np.float32)
    row[[40, 8]] = 1.0
    assert [i for i, _ in token_logprobs(row, 0, 4).top] == [8, 40, 0, 1]


def test_more_alternatives_than_the_vocabulary_has_are_all_of_it() -> None:
    assert len(token_logprobs(np.zeros(3, np.float32), 0, 20).top) == 3
