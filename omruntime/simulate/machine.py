"""The simulated machine: buckets, limits and what each bucket takes, of a bundle or made up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.cost_file import CostFile, CostKey
from omruntime.cost_table import CostTable
from omruntime.errors import ConfigError
from omruntime.limits import EngineLimits, resolve_limits
from omruntime.manifest import Manifest
from omruntime.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Machine:
    """What a run is simulated on; `costs` are the true ones."""

    name: str
    table: BucketTable
    limits: EngineLimits
    costs: CostTable


def bundle_machine(bundle: Path, cost_file: Path) -> Machine:
    """A bundle with the costs that some machine measured, see `cost_file.py`.

    Raises:
        BundleError, ConfigError: The bundle is damaged, or the file holds no costs of it.
    """
    manifest = Manifest.read(bundle)
    table = manifest.bucket_table()
    costs = CostTable(table, table.block_size)
    CostFile(cost_file, CostKey.read(cost_file)).load_into(costs)
    if not costs.is_complete:
        raise ConfigError(f"{cost_file} does not hold the cost of every bucket of {bundle}")
    limits = resolve_limits(EngineSettings(), manifest)
    return Machine(manifest.model.name, table, limits, costs)


def example_machine() -> Machine:
    """A card that reads its weights in 20 ms, computes a token in 0.4 ms and attends on top."""
    block_size, max_model_len = 16, 2048
    pasts = (16, 64, 128)
    shapes = [(Phase.DECODE, batch, 1) for batch in (1, 4, 8, 16, 32)]
    shapes += [(Phase.PREFILL, *s) for s in ((1, 16), (1, 64), (1, 256), (4, 64))]
    table = BucketTable((Bucket(*s, past) for s in shapes for past in pasts), block_size)
    costs = CostTable(table, block_size)
    for bucket in table:
        attended = bucket.batch * bucket.past_blocks * block_size
        tokens = bucket.batch * bucket.tokens
        costs.measure(bucket, 0.020 + 0.0004 * tokens + 4e-7 * attended)
    limits = EngineLimits(
        num_blocks=1 + 16 * max_model_len // block_size,
        max_num_seqs=32,
        max_model_len=max_model_len,
        max_chunk_tokens=256,
        max_queued_requests=1 << 20,
        max_queued_tokens=1 << 40,
    )
    return Machine("example card", table, limits, costs)
