"""From requests to steps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given

from atc_pipeline.plan.lengths import RequestLength
from atc_pipeline.plan.traffic import Traffic, fit_requests
from omruntime.errors import ConfigError
from tests.atc_pipeline.plan.plan_cases import traffics


def alone(*requests: RequestLength, max_num_seqs: int = 1) -> Traffic:
    return Traffic(requests, (1.0,), max_num_seqs, 64, 4)


def test_decode_steps_of_one_sequence() -> None:
    """The prompt's step gives the first token; the others attend to 6, 7, 8 and 9 positions."""
    assert alone(RequestLength(6, 5)).decode_points == {(1, 2): 3.0, (1, 3): 1.0}


def test_a_tiny_concurrency_is_one_row() -> None:
    traffic = Traffic((RequestLength(6, 5),), (1e-17,), 1, 64, 4)
    assert traffic.decode_points == {(1, 2): 3.0, (1, 3): 1.0}


def test_prompts_are_cut_into_full_chunks_and_a_remainder() -> None:
    chunks = dict.fromkeys(range(1, 17), 8)
    assert alone(RequestLength(20, 1)).prefill_points(chunks) == {(8, 1): 1, (8, 2): 1, (4, 4): 1}
    cached = alone(RequestLength(20, 1, cached_tokens=12))
    assert cached.prefill_points(chunks) == {(8, 3): 1}


def test_two_rows_take_the_longer_past() -> None:
    """Half of the row steps see one block, half two; the longer of two is one in a quarter."""
    traffic = alone(RequestLength(4, 2), RequestLength(8, 2), max_num_seqs=2)
    points = traffic.decode_points
    pairs = points[2, 1] + points[2, 2]
    assert points[2, 1] / pairs == pytest.approx(0.25)
    # Poisson of mean 1: exactly one against two or more.
    one, more = 1 / math.e, 1 - 2 / math.e
    assert (points[1, 1] + points[1, 2]) / pairs == pytest.approx(one / more)


@given(traffics())
def test_every_token_is_computed_once(traffic: Traffic) -> None:
    chunks = {past: 3 + past % 5 for past in range(1, traffic.max_past_blocks + 1)}
    prefill = traffic.prefill_points(chunks)
    prompts = sum(r.prompt_tokens - r.cached_tokens for r in traffic.requests)
    computed = sum(tokens * n for (tokens, _), n in prefill.items()) * len(traffic.requests)
    assert computed == pytest.approx(prompts)
    decode = traffic.decode_points
    made = sum(rows * n for (rows, _), n in decode.items()) * len(traffic.requests)
    assert made == pytest.approx(sum(max(0, r.output_tokens - 1) for r in traffic.requests))
    for first, past in (*prefill, *decode):
        assert first >= 1
        assert 1 <= past <= traffic.max_past_blocks
    assert all(rows <= traffic.max_num_seqs for rows, _ in decode)


def test_what_does_not_fit_is_left_out_or_cut() -> None:
    requests = [RequestLength(5, 3), RequestLength(5, 9), RequestLength(8, 1), RequestLength(7, 1)]
    kept, num_refused, num_cut = fit_requests(requests, 8)
    assert [(r.prompt_tokens, r.output_tokens) for r in kept] == [(5, 3), (5, 3), (7, 1)]
    assert (num_refused, num_cut) == (1, 1)
    with pytest.raises(ConfigError, match="every prompt has 4 tokens or more"):
        fit_requests(requests, 4)
