"""Large steps are shared out over threads, and nobody can tell from the results."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from omruntime.sampling.row_threads import LEAST_NUMBERS, RowThreads
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import Request, Sequence

WIDTH = LEAST_NUMBERS // 8


def who(rows: Iterable[NDArray[np.float32]], sequences: Iterable[Sequence]) -> list[int]:
    return [threading.get_ident() for _ in rows]


def sequences_of(count: int) -> list[Sequence]:
    return [Sequence.of(Request(f"r{i}", (i,), SamplingParams()), i) for i in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_results_are_in_order(count: int, num_threads: int) -> None:
    rows = np.zeros((count, WIDTH), np.float32)
    rows[:, 0] = range(count)

    def numbers(
        rows: Iterable[NDArray[np.float32]], sequences: Iterable[Sequence]
    ) -> list[tuple[int, int]]:
        return [(int(row[0]), s.arrival) for row, s in zip(rows, sequences, strict=True)]

    results = RowThreads(num_threads).map(numbers, list(rows), sequences_of(count))
    assert results == [(i, i) for i in range(count)]


def test_large_steps_use_two_threads_and_small_ones_none() -> None:
    threads = RowThreads(2)

    small = threads.map(who, list(np.zeros((8, 4), np.float32)), sequences_of(8))
    assert set(small) == {threading.get_ident()}
    large = threads.map(who, list(np.zeros((8, WIDTH), np.float32)), sequences_of(8))
    assert len(set(large)) == 2


@pytest.mark.parametrize("bad", [0, 7])
def test_an_error_of_any_thread_is_raised(bad: int) -> None:
    def fail(rows: Iterable[NDArray[np.float32]], sequences: Iterable[Sequence]) -> list[int]:
        if bad in [s.arrival for s in sequences]:
            raise ValueError("row is bad")
        return [0 for _ in rows]

    with pytest.raises(ValueError, match="row is bad"):
        RowThreads(2).map(fail, list(np.zeros((8, WIDTH), np.float32)), sequences_of(8))


@pytest.mark.parametrize(("shared", "alone", "num_threads"), [(1.0, 2.0, 2), (1.9, 2.0, 1)])
def test_threads_that_do_not_pay_are_left_alone(
    shared: float, alone: float, num_threads: int
) -> None:
    """On cores that others keep busy."""
    threads, timings = RowThreads(2), iter([shared] * 3 + [alone] * 3)
    threads.calibrate(lambda: next(timings))
    rows = np.zeros((8, WIDTH), np.float32)
    idents = threads.map(who, list(rows), sequences_of(8))
    assert len(set(idents)) == num_threads
