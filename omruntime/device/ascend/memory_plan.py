"""What loading a bundle's programs will take, item by item, before anything is reserved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omruntime.device.ascend.driver import Driver
from omruntime.device.ascend.loading import query_memory
from omruntime.device.ascend.memory import reserved_bytes
from omruntime.device.ascend.weights import padded_bytes, weight_files
from omruntime.device.base import MemoryItem

# A gear buffer holds some tens of numbers; the driver rounds up.
_GEAR_BYTES = 1024


def plan_programs(
    driver: Driver, paths: Sequence[tuple[Path, int]], *, is_shared: bool
) -> tuple[MemoryItem, ...]:
    """The items, in the order in which they are reserved.

    Args:
        paths: Each OM with the number of its buckets, in loading order.
        is_shared: Whether outside weights lie on the device once for all programs.
    """
    needs = [query_memory(driver, path) for path, _ in paths]
    weights = sum(reserved_bytes(need.weight_bytes) for need in needs if need.weight_bytes)
    files = [file for path, _ in paths for file in weight_files(path)]
    external = set(files) if is_shared else files
    return (
        MemoryItem("weights", weights + sum(reserved_bytes(padded_bytes(f)) for f in external)),
        MemoryItem("work memory", _work_bytes([need.work_bytes for need in needs])),
        MemoryItem("gear buffers", sum(count * _GEAR_BYTES for _, count in paths)),
    )


def _work_bytes(needs: Sequence[int]) -> int:
    """A program takes the block of those before it, or a larger one beside it."""
    total = largest = 0
    for need in needs:
        if need > largest:
            largest = need
            total += reserved_bytes(need)
    return total
