"""MemoryBudget: what a bundle will take from a device, line by line, before it takes anything."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from omruntime.device.base import Device, MemoryItem
from omruntime.errors import OutOfDeviceMemoryError
from omruntime.settings import MIB

logger = logging.getLogger(__name__)

KV_POOL = "KV pool"


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The lines.

    Attributes:
        is_pool_fixed: Whether the programs were compiled for one size of the KV pool.
    """

    items: tuple[MemoryItem, ...]
    is_pool_fixed: bool

    @property
    def nbytes(self) -> int:
        """Bytes of all lines."""
        return sum(item.nbytes for item in self.items)

    def require_fits(self, device: Device) -> None:
        """Log the budget, and refuse what the device cannot hold.

        Raises:
            OutOfDeviceMemoryError: What is missing, and what to change.
        """
        info = device.memory_info()
        for item in self.items:
            logger.info("memory device=%s item=%r bytes=%s", device.name, item.name, item.nbytes)
        logger.info(
            "memory device=%s needed_bytes=%s free_bytes=%s total_bytes=%s",
            device.name, self.nbytes, info.free_bytes, info.total_bytes,
        )  # fmt: skip
        missing = self.nbytes - info.free_bytes
        if missing <= 0:
            return
        lines = ", ".join(f"{item.name} {_mib(item.nbytes)}" for item in self.items)
        raise OutOfDeviceMemoryError(
            f"{device.name}: {_mib(self.nbytes)} needed, {_mib(info.free_bytes)} of "
            f"{_mib(info.total_bytes)} free, {_mib(missing)} missing ({lines}); "
            f"{self._remedy(missing)}"
        )

    def _remedy(self, missing: int) -> str:
        pool = sum(item.nbytes for item in self.items if item.name == KV_POOL)
        if self.is_pool_fixed:
            enough = "" if pool > missing else "; the KV pool alone cannot make up for it"
            return (
                f"the pool's size is compiled in: build the bundle with a smaller --num-blocks or "
                f"--max-num-seqs{enough}"
            )
        return "lower --kv-memory-mib or --num-blocks"


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:,.1f} MiB"
