"""Limits of a key: counted by key, told with the time after which they open again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from omruntime.errors import ForbiddenError, RateLimitedError
from omruntime.sequence import FinishReason
from server.request_tally import RequestTally
from server.security.caller_limits import CONCURRENCY_RETRY_S, CallerLimits
from server.security.callers import Caller, caller_var
from server.text import TextDelta, Usage


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limits(clock: Clock) -> Iterator[CallerLimits]:
    yield CallerLimits(clock)
    caller_var.set(None)


def call_as(name: str = "alice", **fields: Any) -> None:
    caller_var.set(Caller(name, "red", **fields))


def run(limits: CallerLimits) -> None:
    with limits.running():
        pass


def wait_s(limits: CallerLimits) -> float | None:
    with pytest.raises(RateLimitedError) as caught:
        run(limits)
    return caught.value.retry_after_s


def used(num_prompt_tokens: int, num_output_tokens: int) -> RequestTally:
    tally = RequestTally(1)
    usage = Usage(num_prompt_tokens, num_output_tokens, 0)
    delta = TextDelta(0, "", (), finish_reason=FinishReason.STOP, usage=usage)
    tally.count(delta)
    tally.num_prompt_tokens = num_prompt_tokens
    return tally


def test_requests_at_once(limits: CallerLimits) -> None:
    call_as(max_concurrent_requests=2)
    with ExitStack() as running:
        for _ in range(2):
            running.enter_context(limits.running())
        assert wait_s(limits) == CONCURRENCY_RETRY_S
        call_as("bob", max_concurrent_requests=1)
        run(limits)
    call_as(max_concurrent_requests=2)
    run(limits)


def test_a_request_that_fails_gives_its_place_back(limits: CallerLimits) -> None:
    call_as(max_concurrent_requests=1)
    for _ in range(2):
        with pytest.raises(KeyError), limits.running():
            raise KeyError


def test_a_minutes_worth_may_go_at_once_and_comes_back_evenly(
    limits: CallerLimits, clock: Clock
) -> None:
    call_as(requests_per_minute=6)
    for _ in range(6):
        run(limits)
    assert wait_s(limits) == pytest.approx(10.0)
    clock.now += 4.0
    assert wait_s(limits) == pytest.approx(6.0)
    clock.now += 6.0
    run(limits)
    assert wait_s(limits) == pytest.approx(10.0)
    clock.now += 3600.0
    for _ in range(6):
        run(limits)
    assert wait_s(limits) == pytest.approx(10.0)


def test_tokens_count_when_a_request_ends(limits: CallerLimits, clock: Clock) -> None:
    call_as(tokens_per_minute=60)
    run(limits)
    limits.finished(used(50, 30))
    assert wait_s(limits) == pytest.approx(21.0)
    clock.now += 21.0
    run(limits)


def test_a_refused_request_uses_nothing(limits: CallerLimits, clock: Clock) -> None:
    call_as(requests_per_minute=1)
    run(limits)
    for _ in range(9):
        assert wait_s(limits) == pytest.approx(60.0)


def test_a_key_without_requests(limits: CallerLimits) -> None:
    call_as(max_concurrent_requests=0)
    with pytest.raises(ForbiddenError, match="may not send requests"):
        run(limits)


def test_nobody_is_limited_without_keys(limits: CallerLimits) -> None:
    for _ in range(1000):
        run(limits)
    limits.finished(used(1, 1))
