"""CostTable: how many seconds one run of each bucket takes on this device.

Owns the numbers: a prior before anything was measured, the measurements of warm-up, and their
slow correction by live steps. Where they are kept between runs is `cost_file.py`'s business,
what is made of them `buckets.py`'s and `phase_policy.py`'s.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from omruntime.buckets import Bucket, Phase

# Seconds for each unit of `Bucket.padded_work` as long as nothing was measured: about a
# millisecond a token. Only the proportions matter to the choice of buckets.
PRIOR_SECONDS_PER_WORK = 1e-6
# A live step moves an estimate by a tenth of the difference, so it follows a device that slows
# down within some dozens of steps and noise hardly moves it.
EWMA_SHARE = 0.1
# A faster step moves it by half: noise makes steps slower and hardly ever faster.
FASTER_SHARE = 0.5
# What a step in a bucket takes from the predictions of those that would have done as well and are
# believed dearer: an estimate from a time when others used the cores is tried again after some
# hundred steps. If it was right, that costs one dear step in some hundred.
DOUBT = 0.002
# One step counts as at most this many times slower or faster than expected: a pause of the whole
# machine moves an estimate by a tenth, and a lasting change is followed all the same.
OUTLIER_RATIO = 2.0


class CostTable:
    """Predicted seconds of every bucket of one bundle; for the engine thread alone.

    Attributes:
        switch_s: Extra seconds of a run of another bucket than the last one's; 0 until measured.
    """

    def __init__(self, buckets: Iterable[Bucket], block_size: int) -> None:
        self._works = {bucket: bucket.padded_work(block_size) for bucket in buckets}
        self._smaller = {b: [o for o in self._works if _replaces(o, b)] for b in self._works}
        self._measured: dict[Bucket, float] = {}
        self._predicted: dict[Bucket, float] = {}
        self.switch_s = 0.0
        self._predict()

    def __contains__(self, bucket: Bucket) -> bool:
        """Whether this is one of the bundle's buckets."""
        return bucket in self._works

    def seconds(self, bucket: Bucket) -> float:
        """The predicted time of one run."""
        return self._predicted[bucket]

    def is_measured(self, bucket: Bucket) -> bool:
        """Whether the prediction rests on runs of this very bucket."""
        return bucket in self._measured

    @property
    def is_complete(self) -> bool:
        """Whether every bucket was measured."""
        return len(self._measured) == len(self._works)

    @property
    def measured(self) -> Mapping[Bucket, float]:
        """Seconds of every bucket that was measured."""
        return self._measured

    def measure(self, bucket: Bucket, seconds: float) -> None:
        """Take over a measurement of warm-up; the buckets without one are scaled anew."""
        self._measured[bucket] = seconds
        self._predict()

    def refine(self, bucket: Bucket, seconds: float) -> None:
        """Correct a measured bucket by a live step; does nothing to one that never was.

        The first runs of a bucket pay for memory that nobody has touched yet, so an engine
        without a warm-up keeps to the prior.
        """
        known = self._measured.get(bucket)
        if known is None:
            return
        seconds = min(max(seconds, known / OUTLIER_RATIO), known * OUTLIER_RATIO)
        known += (FASTER_SHARE if seconds < known else EWMA_SHARE) * (seconds - known)
        self._measured[bucket] = self._predicted[bucket] = known
        for smaller in self._smaller[bucket]:
            if self._predicted[smaller] > known:
                self._predicted[smaller] *= 1 - DOUBT

    def _predict(self) -> None:
        scales = {phase: self._scale(phase) for phase in Phase}
        prior = {b: scales[b.phase] * work for b, work in self._works.items()}
        self._predicted = prior | self._measured

    def _scale(self, phase: Phase) -> float:
        """Seconds for each unit of work, by what was measured in the phase, or in the other."""
        ratios = [s / self._works[b] for b, s in self._measured.items() if b.phase is phase]
        ratios = ratios or [s / self._works[b] for b, s in self._measured.items()]
        return statistics.median(ratios) if ratios else PRIOR_SECONDS_PER_WORK


def _replaces(small: Bucket, large: Bucket) -> bool:
    """Whether a bucket does less than another of its phase, so that it often would do as well."""
    return (
        small != large
        and small.phase is large.phase
        and large.covers(small.batch, small.tokens, small.past_blocks)
    )
