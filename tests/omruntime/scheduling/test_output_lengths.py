"""Expected lengths follow what ended, given how long an answer is already."""

from __future__ import annotations

import pytest

from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.output_lengths import DEFAULT_LENGTH, WINDOW, OutputLengths
from omruntime.sequence import Request, Sequence


def answer(num_output: int, max_new_tokens: int | None = None) -> Sequence:
    params = SamplingParams(max_new_tokens=max_new_tokens)
    sequence = Sequence.of(Request("r", (1,), params), 1)
    sequence.token_ids += [2] * num_output
    return sequence


def test_before_anything_ended_a_default_stands_in() -> None:
    lengths = OutputLengths()
    assert not lengths.is_known
    assert lengths.expected(answer(0)) == DEFAULT_LENGTH
    assert lengths.expected(answer(0, max_new_tokens=5)) == 5
    assert lengths.expected(answer(1000)) > 1000


def test_expected_is_the_mean_of_the_longer_ones() -> None:
    lengths = OutputLengths()
    for length in (10, 20, 90):
        lengths.observe(length)
    assert lengths.expected(answer(0)) == 40
    assert lengths.expected(answer(10)) == 55
    assert lengths.expected(answer(20)) == 90
    assert lengths.num_left(answer(20)) == 70
    assert lengths.expected(answer(200)) == 250
    assert lengths.num_left(answer(0, max_new_tokens=3)) == 3


def test_only_the_last_ones_count() -> None:
    lengths = OutputLengths()
    for _ in range(WINDOW):
        lengths.observe(1000)
    for _ in range(WINDOW):
        lengths.observe(10)
    assert lengths.expected(answer(0)) == pytest.approx(10)
