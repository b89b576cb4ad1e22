"""CarriedLoad: what the engine holds and has done, with counts that outlive its process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from omruntime.blocks.prefix_cache import PrefixCacheCounters
from omruntime.outputs import EngineCounters, EngineLoad
from omruntime.sequence import FinishReason


class CarriedLoad:
    """The present device process's numbers plus the counts of its predecessors.

    Attributes:
        load, counters: Complete; to be read from any thread.
    """

    def __init__(self, num_total_blocks: int) -> None:
        """Begin with an idle engine."""
        self._earlier_load = self.load = EngineLoad.idle(num_total_blocks)
        self._earlier_counters = self.counters = EngineCounters.none()

    def take(self, load: EngineLoad, counters: EngineCounters) -> None:
        """What the present process reports."""
        self.load = _with_counts_of(load, self._earlier_load)
        self.counters = _sum_counters(counters, self._earlier_counters)

    def end_process(self) -> None:
        """The present process is no more: it holds nothing, and its counts stay."""
        self._earlier_counters = self.counters
        idle = EngineLoad.idle(self.load.num_total_blocks)
        self._earlier_load = self.load = _with_counts_of(idle, self.load)

    def add_finished(self, reason: FinishReason, num_finished: int) -> None:
        """Requests that ended without the process that had them."""
        if num_finished:
            more = replace(
                EngineLoad.idle(self.load.num_total_blocks),
                num_finished={reason.value: num_finished},
            )
            self._earlier_load = _with_counts_of(more, self._earlier_load)
            self.load = _with_counts_of(self.load, more)


def _with_counts_of(load: EngineLoad, other: EngineLoad) -> EngineLoad:
    return replace(
        load,
        num_preemptions=load.num_preemptions + other.num_preemptions,
        num_prefix_hit_tokens=load.num_prefix_hit_tokens + other.num_prefix_hit_tokens,
        num_finished=_sum_counts(load.num_finished, other.num_finished),
    )


def _sum_counts(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    names = first.keys() | second.keys()
    return {name: first.get(name, 0) + second.get(name, 0) for name in names}


def _sum_counters(first: EngineCounters, second: EngineCounters) -> EngineCounters:
    caches = first.prefix_cache, second.prefix_cache
    names = [field.name for field in fields(PrefixCacheCounters)]
    sums = {name: sum(getattr(cache, name) for cache in caches) for name in names}
    counts = {
        field.name: getattr(first, field.name) + getattr(second, field.name)
        for field in fields(EngineCounters)
        if field.name != "prefix_cache"
    }
    return EngineCounters(prefix_cache=PrefixCacheCounters(**sums), **counts)
