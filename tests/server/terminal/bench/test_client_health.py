"""The client says when it was the limit, and by which number."""

from __future__ import annotations

import asyncio
import time

import pytest

from server.terminal.bench.client_health import LOOK_S, ClientHealth, watching
from server.terminal.bench.runner import run_load
from tests.server.terminal.bench.scripted_target import ScriptedTarget, conversation

WELL = ClientHealth(0.001, 0.9, 0.001, 0.9, 0.5, 1.5)


def test_a_client_that_is_quick_enough_says_nothing() -> None:
    assert WELL.warnings(ttft_p50_s=0.1, itl_p50_s=0.02) == []
    assert WELL.warnings(0.0, 0.0) == []


@pytest.mark.parametrize(
    ("health", "told"),
    [
        (ClientHealth(0.0, 0.0, 0.0, 0.0, 0.81, 0.9), "event loop used 81% of a core"),
        (ClientHealth(0.0021, 0.1, 0.0, 0.0, 0.1, 0.1), "ran late by 2.1 ms (p99)"),
        (ClientHealth(0.0, 0.0, 0.011, 0.1, 0.1, 0.1), "sent late by 11.0 ms (p99)"),
    ],
)
def test_each_limit_is_told_with_its_number(health: ClientHealth, told: str) -> None:
    (warning,) = health.warnings(ttft_p50_s=0.1, itl_p50_s=0.02)
    assert told in warning


def test_a_client_made_slow_is_found_out() -> None:
    """Its event loop stands still with every piece, as with a slow callback."""
    target = ScriptedTarget(pause=lambda: time.sleep(LOOK_S))

    async def run() -> ClientHealth:
        async with watching() as watch:
            records = await run_load(target, [conversation(0.0) for _ in range(3)], None)
        return watch.health([record.late_s for record in records])

    health = asyncio.run(run())
    # All three are in flight, and each holds up the loop.
    assert health.lag_p99_s >= LOOK_S
    assert "event loop ran late" in " ".join(health.warnings(ttft_p50_s=0.05, itl_p50_s=0.01))
