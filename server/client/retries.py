"""Retries: which failed calls of a client are tried again, and when.

Only what no server can have accepted is tried again, so no request runs twice: a refusal that
says when to come back, or a call that found no connection.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, closing
from dataclasses import dataclass
from typing import TypeVar

from omruntime.errors import CallError, RequestError

T = TypeVar("T")

# The least pauses. Without a connection they are all: as often as the channel tries to connect, see
# CHANNEL_OPTIONS.
FIRST_PAUSE_S = 0.1
MOST_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Retries:
    """How patient a client is; by default a refusal is its caller's to know of at once.

    Attributes:
        max_retries: Tries beside the first.
        max_wait_s: Longest pause before one; a server that asks for a longer one is not asked
            again.
    """

    max_retries: int = 0
    max_wait_s: float = 60.0

    def __post_init__(self) -> None:
        """Check both numbers.

        Raises:
            RequestError: One is below 0.
        """
        for name in ("max_retries", "max_wait_s"):
            value = getattr(self, name)
            if not value >= 0:  # NaN is not
                raise RequestError(f"{name} is {value}, wanted at least 0")


class _Pace:
    """The tries of one call, within its deadline."""

    def __init__(self, retries: Retries, timeout_s: float | None) -> None:
        self._retries = retries
        self._num_tries = 0
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    @property
    def left_s(self) -> float | None:
        """What is left of the call's time; None without a deadline."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def pause_s(self, error: CallError) -> float | None:
        """Seconds before the next try; None when the error is the call's end."""
        own_s = min(MOST_PAUSE_S, FIRST_PAUSE_S * 2**self._num_tries)
        pause_s = own_s if error.is_unsent else error.retry_after_s
        # A server that was wrong once is asked less often, as RetryInfo demands: a queue in which
        # many answers end together moves in jumps, and its pace before one says too little.
        pause_s = None if pause_s is None else max(own_s, pause_s)
        left_s = math.inf if self.left_s is None else self.left_s
        self._num_tries += 1
        if pause_s is None or self._num_tries > self._retries.max_retries:
            return None
        return pause_s if pause_s <= min(left_s, self._retries.max_wait_s) else None


def retried(retries: Retries, timeout_s: float | None, call: Callable[[float | None], T]) -> T:
    """The result of a call, which gets the seconds that are left to it."""
    pace = _Pace(retries, timeout_s)
    while True:
        try:
            return call(pace.left_s)
        except CallError as error:
            pause_s = pace.pause_s(error)
            if pause_s is None:
                raise
        time.sleep(pause_s)


def retried_stream(
    retries: Retries,
    timeout_s: float | None,
    begin: Callable[[float | None], Generator[T, None, None]],
) -> Generator[T, None, None]:
    """The items of a stream; one that has given an item is not begun again."""
    pace = _Pace(retries, timeout_s)
    while True:
        has_begun = False
        try:
            with closing(begin(pace.left_s)) as items:
                for item in items:
                    has_begun = True
                    yield item
            return
        except CallError as error:
            pause_s = None if has_begun else pace.pause_s(error)
            if pause_s is None:
                raise
        time.sleep(pause_s)


async def retried_async(
    retries: Retries, timeout_s: float | None, call: Callable[[float | None], Awaitable[T]]
) -> T:
    """As `retried`."""
    pace = _Pace(retries, timeout_s)
    while True:
        try:
            return await call(pace.left_s)
        except CallError as error:
            pause_s = pace.pause_s(error)
            if pause_s is None:
                raise
        await asyncio.sleep(pause_s)


async def retried_async_stream(
    retries: Retries,
    timeout_s: float | None,
    begin: Callable[[float | None], AsyncGenerator[T, None]],
) -> AsyncGenerator[T, None]:
    """As `retried_stream`."""
    pace = _Pace(retries, timeout_s)
    while True:
        has_begun = False
        try:
            async with aclosing(begin(pace.left_s)) as items:
                async for item in items:
                    has_begun = True
                    yield item
            return
        except CallError as error:
            pause_s = None if has_begun else pace.pause_s(error)
            if pause_s is None:
                raise
        await asyncio.sleep(pause_s)
