from __future__ import annotations

from dataclasses import replace

from omruntime.blocks.prefix_cache import PrefixCacheCounters
from omruntime.outputs import EngineCounters, EngineLoad
from omruntime.sequence import FinishReason
from omruntime.worker.carried_load import CarriedLoad

COUNTERS = EngineCounters(7, 1, PrefixCacheCounters(1, 2, 3, 4, 5, 6))
LOAD = EngineLoad(3, 2, 50, 8, 4, 9, 5, 11, {"stop": 2, "error": 1})


def test_counts_go_on_after_a_death_and_nothing_is_held() -> None:
    carried = CarriedLoad(9)
    carried.take(LOAD, COUNTERS)
    assert (carried.load, carried.counters) == (LOAD, COUNTERS)
    carried.end_process()
    carried.add_finished(FinishReason.ERROR, 5)
    assert carried.load == EngineLoad(0, 0, 0, 0, 0, 9, 5, 11, {"stop": 2, "error": 6})
    assert carried.counters == COUNTERS
    carried.take(LOAD, COUNTERS)
    wanted = replace(LOAD, num_preemptions=10, num_prefix_hit_tokens=22)
    assert carried.load == replace(wanted, num_finished={"stop": 4, "error": 7})
    assert carried.counters == EngineCounters(14, 2, PrefixCacheCounters(2, 4, 6, 8, 10, 12))


def test_ends_that_the_process_did_not_see_are_counted_while_it_lives() -> None:
    carried = CarriedLoad(9)
    carried.take(LOAD, COUNTERS)
    carried.add_finished(FinishReason.ERROR, 1)
    assert carried.load.num_finished["error"] == 2
    carried.take(LOAD, COUNTERS)
    assert carried.load.num_finished["error"] == 2
