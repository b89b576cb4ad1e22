"""BucketUse: how often each bucket ran, how full it was, and what its warm-up took.

Counts only; what a bucket is predicted to take is `cost_table.py`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass

from omruntime.buckets import Bucket, BucketTable
from omruntime.costs.cost_table import CostTable


@dataclass(frozen=True, slots=True)
class BucketReport:
    """What is known of one bucket; counts are since the engine was opened.

    Attributes:
        predicted_s: Seconds of one run, by which buckets are chosen.
        is_measured: Whether that rests on runs of this bucket.
        num_steps: Runs for requests.
        num_rows, num_tokens: Computed for requests in those runs.
        warm_up_s: Seconds of its runs before the first request; 0 when it had none.
    """

    bucket: Bucket
    predicted_s: float
    is_measured: bool
    num_steps: int
    num_rows: int
    num_tokens: int
    warm_up_s: float

    @property
    def num_padded_rows(self) -> int:
        """Rows that ran for nobody."""
        return self.num_steps * self.bucket.batch - self.num_rows

    @property
    def num_padded_tokens(self) -> int:
        """Tokens that were computed for nobody: padding behind rows, and whole rows of it."""
        return self.num_steps * self.bucket.batch * self.bucket.tokens - self.num_tokens


@dataclass(slots=True)
class _Count:
    num_steps: int = 0
    num_rows: int = 0
    num_tokens: int = 0
    warm_up_s: float = 0.0


class BucketUse:
    """Counts by bucket; for the engine thread alone.

    Attributes:
        num_tokens: Computed for requests.
        num_places: Tokens that the buckets of all steps had places for.
        num_switches: Steps that ran another bucket than the step before.
    """

    def __init__(self, table: BucketTable) -> None:
        self._counts = {bucket: _Count() for bucket in table}
        self._last: Bucket | None = None
        self.num_tokens = 0
        self.num_places = 0
        self.num_switches = 0

    def ran(self, bucket: Bucket, num_rows: int, num_tokens: int) -> None:
        """Count a step."""
        count = self._counts[bucket]
        count.num_steps += 1
        count.num_rows += num_rows
        count.num_tokens += num_tokens
        self.num_tokens += num_tokens
        self.num_places += bucket.batch * bucket.tokens
        self.num_switches += self._last not in (None, bucket)
        self._last = bucket

    def warmed(self, bucket: Bucket, seconds: float) -> None:
        """Count a run of warm-up."""
        self._counts[bucket].warm_up_s += seconds

    def reports(self, costs: CostTable) -> tuple[BucketReport, ...]:
        """All buckets, by padded work."""
        return tuple(
            BucketReport(
                bucket,
                costs.seconds(bucket),
                costs.is_measured(bucket),
                count.num_steps,
                count.num_rows,
                count.num_tokens,
                count.warm_up_s,
            )
            for bucket, count in self._counts.items()
        )
