"""The buckets a graph will be compiled for, as far as the rules need them.

Owns no choice of buckets: they come from a bundle's manifest or from the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from omruntime.buckets import Bucket, Phase
from omruntime.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Gears:
    """The gears of each OM and the size of the KV pool.

    Attributes:
        programs: For each OM, its name and its buckets; more than one bucket are gears.
        num_blocks: Blocks of the pool; None when it is not settled yet.
        block_size: Tokens of a block.
    """

    programs: tuple[tuple[str, tuple[Bucket, ...]], ...]
    num_blocks: int | None
    block_size: int

    @staticmethod
    def per_phase(buckets: tuple[Bucket, ...], num_blocks: int | None, block_size: int) -> Gears:
        """One OM for prefill and one for decode, which is the usual layout."""
        by_phase = [(phase.value, tuple(b for b in buckets if b.phase is phase)) for phase in Phase]
        programs = tuple((name, found) for name, found in by_phase if found)
        return Gears(programs, num_blocks, block_size)

    @staticmethod
    def of_manifest(manifest: Manifest) -> Gears:
        """As the programs of a bundle were built."""
        programs = tuple((p.path, p.buckets) for p in manifest.programs if p.role == "step")
        return Gears(programs, manifest.kv.num_blocks, manifest.kv.block_size)

    def largest_sizes(self) -> Mapping[str, int]:
        """The largest value of each symbolic dimension, by its name."""
        buckets = [bucket for _, found in self.programs for bucket in found]
        sizes: dict[str, int] = {}
        if buckets:
            sizes["batch"] = max(b.batch for b in buckets)
            sizes["tokens"] = max(b.tokens for b in buckets)
            sizes["past_blocks"] = max(b.past_blocks for b in buckets)
            sizes["new_tokens"] = max(b.batch * b.tokens for b in buckets)
        if self.num_blocks is not None:
            sizes["num_blocks"] = self.num_blocks
            sizes["num_slots"] = self.num_blocks * self.block_size
        return sizes
