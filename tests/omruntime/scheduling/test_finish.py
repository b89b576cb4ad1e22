"""An answer ends with an end token, a stop token or a length, and with nothing before."""

from __future__ import annotations

import pytest

from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.finish import finish_reason
from omruntime.sequence import FinishReason, Request, Sequence

MAX_LEN = 10


def reason_after(answer: list[int], params: SamplingParams, num_prompt: int = 2) -> str | None:
    sequence = Sequence.of(Request("r", (0,) * num_prompt, params), 0)
    sequence.token_ids += answer
    reason = finish_reason(sequence, {7, 8}, MAX_LEN)
    return None if reason is None else reason.value


@pytest.mark.parametrize(
    ("answer", "params", "expected"),
    [
        ([1], SamplingParams(), None),
        # BL-06: end ids come as a list, each of them ends the answer.
        ([1, 7], SamplingParams(), "stop"),
        ([1, 8], SamplingParams(), "stop"),
        ([1, 8], SamplingParams(ignore_eos=True), None),
        ([1, 5], SamplingParams(stop_token_ids=(5,)), "stop"),
        ([1, 7], SamplingParams(ignore_eos=True, stop_token_ids=(7,)), "stop"),
        ([1, 2], SamplingParams(max_new_tokens=2), "length"),
        ([1, 2], SamplingParams(max_new_tokens=3), None),
        # BL-30: the end token as the last one allowed is a stop.
        ([1, 7], SamplingParams(max_new_tokens=2), "stop"),
        ([1] * 8, SamplingParams(), "length"),
        ([1] * 7, SamplingParams(), None),
        # BL-23: nothing stops within min_new_tokens.
        ([1, 7], SamplingParams(min_new_tokens=2), None),
        ([1, 7], SamplingParams(min_new_tokens=1), "stop"),
        ([5], SamplingParams(min_new_tokens=1, stop_token_ids=(5,)), None),
        ([7], SamplingParams(min_new_tokens=1, max_new_tokens=1), "length"),
    ],
)
def test_reason(answer: list[int], params: SamplingParams, expected: str | None) -> None:
    assert reason_after(answer, params) == expected


def test_only_the_latest_token_decides() -> None:
    assert reason_after([7, 1], SamplingParams()) is None


def test_prompt_up_to_the_limit_yields_one_token() -> None:
    """BL-30: 255 tokens of 256 yield one token and end by length."""
    assert reason_after([1], SamplingParams(), num_prompt=MAX_LEN - 1) == FinishReason.LENGTH.value
