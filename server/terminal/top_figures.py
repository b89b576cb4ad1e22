"""What `om-client top` computes of WatchLoad's snapshots: rates, quantiles, a little history."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from server.pb import control_pb2 as pb

# A second's requests are too few for a quantile.
WINDOW_S = 15.0
# As wide as terminals are.
MAX_POINTS = 200


@dataclass(frozen=True, slots=True)
class Figures:
    """One moment; None where nothing is known or nothing happened.

    Attributes:
        generated, prefilled, steps, switches: Each second, since the snapshot before.
        first_token_s, next_token_s: (median, 95 % within) of the latest `WINDOW_S`.
        padding: Share of computed tokens that nobody wanted, of the same time.
    """

    generated: float | None
    prefilled: float | None
    steps: float | None
    switches: float | None
    first_token_s: tuple[float, float] | None
    next_token_s: tuple[float, float] | None
    padding: float | None


@dataclass(slots=True)
class FigureHistory:
    """Takes one snapshot after the other.

    Attributes:
        points: The figures of the latest snapshots, the newest last.
    """

    points: deque[Figures] = field(default_factory=lambda: deque(maxlen=MAX_POINTS))
    _snapshots: deque[pb.WatchLoadResponse] = field(default_factory=deque)

    def push(self, now: pb.WatchLoadResponse) -> Figures:
        """Add a snapshot; counts that fell are those of a server that was started anew."""
        if self._snapshots and now.uptime_s < self._snapshots[-1].uptime_s:
            self._snapshots.clear()
        before = self._snapshots[-1] if self._snapshots else now
        self._snapshots.append(now)
        while now.uptime_s - self._snapshots[0].uptime_s > WINDOW_S and len(self._snapshots) > 2:
            self._snapshots.popleft()
        figures = _figures(now, before, self._snapshots[0])
        self.points.append(figures)
        return figures


def _figures(
    now: pb.WatchLoadResponse, before: pb.WatchLoadResponse, since: pb.WatchLoadResponse
) -> Figures:
    seconds = now.uptime_s - before.uptime_s

    def rate(name: str) -> float | None:
        grown: int = getattr(now, name) - getattr(before, name)
        return grown / seconds if seconds > 0 else None

    computed = now.num_computed_tokens - since.num_computed_tokens
    padded = now.num_padded_tokens - since.num_padded_tokens
    return Figures(
        generated=rate("num_generated_tokens"),
        prefilled=rate("num_prefill_tokens"),
        steps=rate("num_steps"),
        switches=rate("num_bucket_switches"),
        first_token_s=_quantiles(now.time_to_first_token, since.time_to_first_token),
        next_token_s=_quantiles(now.inter_token, since.inter_token),
        padding=padded / (computed + padded) if computed + padded else None,
    )


def _quantiles(
    now: pb.DurationHistogram, since: pb.DurationHistogram
) -> tuple[float, float] | None:
    counts = [a - b for a, b in zip(now.counts, since.counts, strict=True)]
    if not sum(counts):
        return None
    return quantile(now.bounds_s, counts, 0.5), quantile(now.bounds_s, counts, 0.95)


def quantile(bounds_s: Sequence[float], counts: Sequence[int], share: float) -> float:
    """The duration within which a share of them lies, evenly spread between two bounds.

    Above the last bound nothing is known, so that is the most it says.
    """
    left = share * sum(counts)
    low = 0.0
    for bound, count in zip(bounds_s, counts, strict=False):
        if count and left <= count:
            return low + (bound - low) * left / count
        left -= count
        low = bound
    return low
