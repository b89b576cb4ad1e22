"""A broken state ends the requests that it touches, and the others go on over a sound pool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from omruntime.device.cpu import CpuDevice
from omruntime.engine import Engine
from omruntime.sequence import FinishReason, Request, Sequence
from omruntime.settings import EngineSettings
from tests.omruntime.scheduler_bench import Bench
from tests.omruntime.test_engine import GREEDY, prompts, run_to_end
from tests.omruntime.toy_model import toy_answer


def lose_a_block(bench: Bench, victim: Sequence) -> None:
    victim.block_table.pop()


def hold_the_null_block(bench: Bench, victim: Sequence) -> None:
    bench.pool.release([victim.block_table[-1]])
    victim.block_table[-1] = 0


def hold_a_block_twice(bench: Bench, victim: Sequence) -> None:
    bench.pool.release([victim.block_table[1]])
    victim.block_table[1] = victim.block_table[0]


def hold_a_free_block(bench: Bench, victim: Sequence) -> None:
    bench.pool.release([victim.block_table[0]])


def compute_beyond_the_tokens(bench: Bench, victim: Sequence) -> None:
    victim.num_computed_tokens = len(victim.token_ids)


@pytest.mark.parametrize(
    "damage",
    [
        lose_a_block,
        hold_the_null_block,
        hold_a_block_twice,
        hold_a_free_block,
        compute_beyond_the_tokens,
    ],
)
def test_the_damaged_one_ends_and_the_other_does_not(
    damage: Callable[[Bench, Sequence], None],
) -> None:
    bench = Bench()
    sound, victim = bench.add("a", 9), bench.add("b", 9)
    bench.run_until(lambda: victim.num_output_tokens > 2)
    damage(bench, victim)
    with pytest.raises(AssertionError):
        bench.scheduler.check()
    assert bench.scheduler.quarantine() == [victim]
    assert victim.finish_reason is FinishReason.ERROR
    assert victim.finish_detail
    assert bench.scheduler.num_quarantined == 1
    bench.scheduler.check()
    bench.drain()
    assert sound.finish_reason is FinishReason.LENGTH


def test_a_leaked_block_is_found_again_and_nobody_ends() -> None:
    bench = Bench()
    bench.add("a", 9)
    bench.step()
    bench.pool.try_allocate(3)
    assert bench.scheduler.quarantine() == []
    bench.scheduler.check()
    bench.drain()


def test_the_engine_checks_now_and_then_and_goes_on(
    toy_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = prompts(10)[8]
    engine = Engine(CpuDevice(1), toy_bundle, EngineSettings(check_invariants_every=2))
    engine.add(Request("r", prompt, GREEDY))
    engine.step()
    engine._pool.try_allocate(1)  # a block that nobody gives back
    answer = engine.step() + engine.step()
    assert "inconsistent" in caplog.text
    assert (answer[-1][1].finish_reason, engine.counters().num_quarantined) == (None, 0)
    answers = run_to_end(engine)["r"]
    assert answers.token_ids == toy_answer(prompt, 20)[-len(answers.token_ids) :]
    assert engine.counters().num_steps > 20
    engine.close()
