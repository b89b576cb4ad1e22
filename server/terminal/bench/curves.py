"""Curves of a run: distributions, and what happened over time; points, not pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby

from server.terminal.bench.records import Record

Point = tuple[float, float]

# As many as a curve of some hundred pixels can show.
MAX_POINTS = 200
NUM_BINS = 60


def cumulative(values: Iterable[float]) -> list[Point]:
    """The share of all values up to each of them: from the least at 0 to the greatest at 1."""
    ascending = sorted(values)
    if not ascending:
        return []
    last = len(ascending) - 1
    count = min(MAX_POINTS, last)
    places = sorted({round(i * last / count) for i in range(count + 1)}) if count else [0]
    return [(ascending[place], (place + 1) / len(ascending)) for place in places]


def tokens_over_time(records: Iterable[Record], duration_s: float) -> list[Point]:
    """Tokens a second in equal slices of the run, each at its middle, by when events came."""
    if duration_s <= 0:
        return []
    slice_s, bins = duration_s / NUM_BINS, [0.0] * NUM_BINS
    for record in records:
        # Where an event does not tell its tokens, the server's count is spread over the events.
        seen = sum(count for _, count in record.events)
        weight = record.num_tokens / seen if seen else 0.0
        for moment_s, count in record.events:
            bins[min(NUM_BINS - 1, int(moment_s / slice_s))] += count * weight
    return [((i + 0.5) * slice_s, tokens / slice_s) for i, tokens in enumerate(bins)]


def in_flight_over_time(records: Iterable[Record]) -> list[Point]:
    """How many requests were sent and not over, as steps: two points at each change."""
    changes = sorted(change for r in records for change in ((r.sent_s, 1), (r.end_s, -1)))
    by_time = [
        (moment_s, sum(step for _, step in group))
        for moment_s, group in groupby(changes, key=lambda change: change[0])
    ]
    levels = list(accumulate(step for _, step in by_time))
    points: list[Point] = []
    for (moment_s, step), level in zip(by_time, levels, strict=True):
        points += [(moment_s, float(level - step)), (moment_s, float(level))]
    return _thinned(points)


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Where there are too many, the greatest of each few: peaks stay."""
    width = -(-len(points) // (4 * MAX_POINTS))
    if width <= 1:
        return list(points)
    return [
        max(points[i : i + width], key=lambda point: point[1]) for i in range(0, len(points), width)
    ]
