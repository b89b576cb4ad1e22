"""The soak notices what it is for: memory that grows, blocks that stay, wrong answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from bench.churn import Tally
from bench.soak import NUM_SAMPLES, Soaked, report, slope, soak
from omruntime.outputs import EngineCounters, EngineLoad
from tests.omruntime.toy_model import write_toy_bundle

FLAT = [(1000 * i, 50_000_000) for i in range(NUM_SAMPLES)]


def soaked(memory: list[tuple[int, int]], **load: int) -> Soaked:
    end = replace(EngineLoad.idle(96), **load)  # type: ignore[arg-type]
    return Soaked(Tally(), end, EngineCounters.none(), 1.0, memory)


@pytest.mark.parametrize("bytes_each", [0.0, 3.0, 9.0, 12.0])
def test_slope_is_that_of_a_line(bytes_each: float) -> None:
    line = [(n, 50_000_000 + round(bytes_each * n)) for n, _ in FLAT]
    assert slope(line) == pytest.approx(bytes_each, abs=1e-3)
    faults = soaked(line).faults()
    grows = any("memory grows" in fault for fault in faults)
    assert grows == (bytes_each > 10)
    assert not grows or "measured over 239000 of them" in faults[0]


def test_what_a_start_takes_does_not_count() -> None:
    steep = [(n, 50_000_000 + min(n, 30_000) * 100) for n, _ in FLAT]
    assert soaked(steep).faults() == []


def test_too_few_samples_have_no_slope() -> None:
    assert slope([]) == slope([(1, 2)]) == slope([(1, 2), (1, 3)]) == 0.0


def test_faults_are_named() -> None:
    result = soaked(FLAT, num_referenced_blocks=3, num_running=1)
    result.tally.note_wrong("r1: got (1,), wanted (2,)")
    assert result.faults() == [
        "wrong answer: r1: got (1,), wanted (2,)",
        "3 blocks are held at the end",
        "requests are live at the end",
    ]


def test_a_short_churn_answers_right_and_leaves_nothing(tmp_path: Path) -> None:
    result = asyncio.run(soak(write_toy_bundle(tmp_path / "toy"), 1.5, seed=3))
    assert result.tally.num_requests > 0
    assert result.load.num_referenced_blocks == 0
    assert [f for f in result.faults() if "memory" not in f] == []
    assert "referenced blocks at the end: 0" in report(result)
