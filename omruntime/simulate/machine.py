"""The simulated machine: buckets, limits and what each bucket takes, of a bundle or made up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.costs.cost_file import CostFile, CostKey
from omruntime.costs.cost_table import CostTable
from omruntime.errors import ConfigError
from omruntime.limits import EngineLimits, resolve_limits
from omruntime.manifest import Manifest
from omruntime.settings import EngineSettings

EXAMPLE_BLOCK_SIZE, EXAMPLE_MODEL_LEN, EXAMPLE_SEQS = 16, 2048, 32
_PASTS = (16, 64, 128)
_CHUNKS = ((1, 16), (1, 64), (1, 256), (4, 64))
EXAMPLE_BUCKETS = (
    *(Bucket(Phase.DECODE, rows, 1, past) for rows in (1, 4, 8, 16, 32) for past in _PASTS),
    *(Bucket(Phase.PREFILL, *chunk, past) for chunk in _CHUNKS for past in _PASTS),
)


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


def example_seconds(batch: int, tokens: int, past_blocks: int) -> float:
    """A card that reads its weights in 20 ms, computes a token in 0.4 ms and attends on top."""
    attended = batch * past_blocks * EXAMPLE_BLOCK_SIZE
    return 0.020 + 0.0004 * batch * tokens + 4e-7 * attended


def example_machine(buckets: Iterable[Bucket] = EXAMPLE_BUCKETS) -> Machine:
    """The card of `example_seconds` with 16 times the blocks of the longest sequence."""
    table = BucketTable(buckets, EXAMPLE_BLOCK_SIZE)
    costs = CostTable(table, EXAMPLE_BLOCK_SIZE)
    for bucket in table:
        shape = (bucket.batch, bucket.tokens, bucket.past_blocks)
        costs.measure(bucket, example_seconds(*shape))
    limits = EngineLimits(
        num_blocks=1 + 16 * EXAMPLE_MODEL_LEN // EXAMPLE_BLOCK_SIZE,
        max_num_seqs=EXAMPLE_SEQS,
        max_model_len=EXAMPLE_MODEL_LEN,
        max_chunk_tokens=256,
        max_queued_requests=1 << 20,
        max_queued_tokens=1 << 40,
    )
    return Machine("example card", table, limits, costs)
