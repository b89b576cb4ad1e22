"""LogitsEditor: bias, bans and penalties, their order, and the token arrays behind them."""

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omruntime.manifest import SamplingDefaults
from omruntime.sampling.logits import LogitsEditor, TokenHistories
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import Request, Sequence, SequenceStatus

VOCAB_SIZE = 12
EOS = 2
token_ids = st.integers(0, VOCAB_SIZE - 1)
params_strategy = st.builds(
    SamplingParams,
    logit_bias=st.dictionaries(token_ids, st.sampled_from([-100.0, -1.5, 3.0, 100.0]), max_size=3),
    allowed_token_ids=st.lists(token_ids, max_size=4).map(tuple),
    banned_token_ids=st.lists(token_ids, max_size=4).map(tuple),
    stop_token_ids=st.lists(token_ids, max_size=2).map(tuple),
    min_new_tokens=st.integers(0, 6),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3]),
    presence_penalty=st.sampled_from([0.0, 2.0, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 1.25, -2.0]),
)


def sequence_of(params: SamplingParams, prompt: list[int], output: list[int]) -> Sequence:
    request = Request("r", tuple(prompt), params.resolve(SamplingDefaults()))
    sequence = Sequence.of(request, 0)
    sequence.token_ids += output
    return sequence


def reference(row: list[float], sequence: Sequence) -> list[float]:
    """The documented rule, token by token in Python floats."""
    params, prompt = sequence.params, sequence.request.prompt_token_ids
    output = sequence.token_ids[len(prompt) :]
    edited = []
    for token_id, raw in enumerate(row):
        score = raw + params.logit_bias.get(token_id, 0.0)
        early = len(output) < params.min_new_tokens
        if (
            (params.allowed_token_ids and token_id not in params.allowed_token_ids)
            or token_id in params.banned_token_ids
            or (early and token_id in (EOS, *params.stop_token_ids))
        ):
            score = -math.inf
        penalty = params.repetition_penalty or 1.0
        if token_id in sequence.token_ids:
            score = score / penalty if score > 0 else score * penalty
        count = output.count(token_id)
        score -= params.presence_penalty * (count > 0) + params.frequency_penalty * count
        edited.append(score)
    return edited


@given(
    row=st.lists(st.floats(-30, 30, width=32), min_size=VOCAB_SIZE, max_size=VOCAB_SIZE),
    params=params_strategy,
    prompt=st.lists(token_ids, min_size=1, max_size=8),
    output=st.lists(token_ids, max_size=8),
)
def test_a_row_is_edited_as_the_documented_rule_says(
    row: list[float], params: SamplingParams, prompt: list[int], output: list[int]
) -> None:
    sequence = sequence_of(params, prompt, output)
    editor, edited = LogitsEditor([EOS]), np.array(row, np.float32)
    if editor.changes(sequence):
        editor.apply(edited, sequence)
    np.testing.assert_allclose(edited, reference(row, sequence), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "setting",
    [
        {"logit_bias": {1: 1.0}},
        {"allowed_token_ids": (1,)},
        {"banned_token_ids": (1,)},
        {"min_new_tokens": 1},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
    ],
)
def test_every_setting_that_edits_is_noticed(setting: Mapping[str, object]) -> None:
    sequence = sequence_of(SamplingParams(**setting), [1], [])  # type: ignore[arg-type]
    assert LogitsEditor([EOS]).changes(sequence)


def test_nothing_is_edited_without_such_a_setting() -> None:
    params = SamplingParams(temperature=0.7, top_p=0.9, stop_token_ids=(3,), ignore_eos=True)
    assert not LogitsEditor([EOS]).changes(sequence_of(params, [1], []))


def test_ignoring_the_end_token_does_not_ban_it() -> None:
    params = SamplingParams(ignore_eos=True, presence_penalty=1.0)
    row = np.ones(VOCAB_SIZE, np.float32)
    LogitsEditor([EOS]).apply(row, sequence_of(params, [1], []))
    assert row[EOS] == 1.0


def test_end_tokens_are_banned_until_the_minimum_is_reached_and_free_then() -> None:
    """BL-23: the answer goes on past its natural end until min_new_tokens."""
    params = SamplingParams(min_new_tokens=2, stop_token_ids=(5,))
    editor = LogitsEditor([EOS])
    row = np.ones(VOCAB_SIZE, np.float32)
    editor.apply(row, sequence_of(params, [1], [3]))
    assert np.flatnonzero(np.isneginf(row)).tolist() == [EOS, 5]
    assert not editor.changes(sequence_of(params, [1], [3, 3]))


def test_a_word_that_fills_the_prompt_is_penalised_once() -> None:
    """BL-26: repetition penalty once per distinct id, not to the power of 50."""
    params = SamplingParams(repetition_penalty=1.1)
    row = np.full(VOCAB_SIZE, 2.2, np.float32)
    LogitsEditor([EOS]).apply(row, sequence_of(params, [4] * 50, []))
    assert row[4] == pytest.approx(2.0)
    assert row[5] == pytest.approx(2.2)


def test_presence_and_frequency_ignore_the_prompt() -> None:
    """BL-26: nothing is generated yet, so nothing changes."""
    params = SamplingParams(presence_penalty=2.0, frequency_penalty=2.0)
    row = np.zeros(VOCAB_SIZE, np.float32)
    LogitsEditor([EOS]).apply(row, sequence_of(params, [4, 4, 4], []))
    assert not row.any()


def test_a_history_follows_its_sequence_and_survives_preemption() -> None:
    """BL-26: the penalties' state is the sequence itself."""
    histories, sequence = TokenHistories(), sequence_of(SamplingParams(), [1, 2, 1], [])
    for step in range(300):
        history = histories.of(sequence)
        output = Counter(sequence.token_ids[3:])
        assert sorted(history.all_tokens.ids.tolist()) == sorted(set(sequence.token_ids))
        counts = zip(history.output_tokens.ids, history.output_tokens.counts, strict=True)
        assert dict(counts) == output
        if step == 50:
            sequence.status, sequence.num_computed_tokens = SequenceStatus.WAITING, 0
            histories.drop_finished()
        sequence.token_ids.append(step * step % 101)


def test_histories_of_finished_sequences_are_dropped() -> None:
    histories = TokenHistories()
    live, finished = (sequence_of(SamplingParams(), [1], []) for _ in range(2))
    histories.of(live)
    histories.of(finished)
    finished.status = SequenceStatus.FINISHED
    histories.drop_finished()
    assert len(histories) == 1
