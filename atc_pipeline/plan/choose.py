"""The choice of buckets: candidate planes, the search of each phase, and the split of a limit.

Owns which sizes are candidates and how many gears each phase gets. The search itself is
`gear_search.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atc_pipeline.plan.cost import CostModel
from atc_pipeline.plan.evaluate import step_shape
from atc_pipeline.plan.gear_search import Floats, GearSet, search_gears
from atc_pipeline.plan.traffic import Point, Traffic
from omruntime.buckets import Bucket, Phase
from omruntime.errors import ConfigError

# Enough that a finer grid would save a few per cent at most, few enough for the search.
_MAX_PAST_CANDIDATES = 16
_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# A shorter chunk costs as much as this many tokens: the weights are read all the same.
_LEAST_CHUNK = 16
_LONGEST_CHUNKS = (64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class GearLimits:
    """How many buckets there may be.

    Attributes:
        per_phase: Of prefill, and of decode; at least 1.
        together: Of both; at least 2.
        max_chunk_tokens: Tokens of the longest prefill chunk.
    """

    per_phase: int
    together: int
    max_chunk_tokens: int

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
            ConfigError: One is too small.
        """
        for name, value, least in (
            ("gears per phase", self.per_phase, 1),
            ("gears of both phases", self.together, 2),
            ("longest prefill chunk", self.max_chunk_tokens, 2),
        ):
            if value < least:
                raise ConfigError(f"{name}: {value}, wanted at least {least}")


@dataclass(frozen=True, slots=True)
class _Plane:
    """Candidate gears of one phase.

    Attributes:
        firsts: Rows (decode) or tokens (prefill), ascending.
        pasts: Past blocks, ascending.
    """

    phase: Phase
    firsts: tuple[int, ...]
    pasts: tuple[int, ...]

    def search(
        self, points: Mapping[Point, float], model: CostModel, max_gears: int
    ) -> tuple[GearSet, ...]:
        """The best sets of gears for the steps that occur."""
        shape = (len(self.firsts), len(self.pasts))
        weights: Floats = np.zeros(shape)
        for (first, past), weight in points.items():
            weights[_reach(self.firsts, first), _reach(self.pasts, past)] += weight
        costs = np.array([[self._seconds(model, f, p) for p in self.pasts] for f in self.firsts])
        return search_gears(weights, costs, max_gears)

    def buckets(self, found: GearSet) -> tuple[Bucket, ...]:
        """The gears as buckets."""
        return tuple(
            Bucket(self.phase, *step_shape(self.phase, (self.firsts[row], self.pasts[column])))
            for row, column in found.gears
        )

    def _seconds(self, model: CostModel, first: int, past: int) -> float:
        return model.shape_seconds(*step_shape(self.phase, (first, past)))


def choose_buckets(traffic: Traffic, model: CostModel, limits: GearLimits) -> tuple[Bucket, ...]:
    """The buckets of least expected time within the limits; they cover every reachable step."""
    pasts = past_candidates(traffic.max_past_blocks)
    rows = _up_to(_STEPS, traffic.max_num_seqs)
    decode = _Plane(Phase.DECODE, rows, pasts)
    decode_sets = decode.search(traffic.decode_points, model, limits.per_phase)
    options = [
        (plane, found)
        for plane in _prefill_planes(traffic, limits, pasts)
        for found in plane.search(_full_chunks(plane, traffic), model, limits.per_phase)
    ]
    best = min(
        (
            (
                prefill.cost + found.cost,
                len(prefill.gears) + len(found.gears),
                plane,
                prefill,
                found,
            )
            for plane, prefill in options
            for found in decode_sets
            if len(prefill.gears) + len(found.gears) <= limits.together
        ),
        key=lambda option: option[:2],
    )
    _, _, plane, prefill, found = best
    return (*plane.buckets(prefill), *decode.buckets(found))


def past_candidates(max_past_blocks: int) -> tuple[int, ...]:
    """Past sizes to choose from: all when there are few, else in growing steps up to the last."""
    if max_past_blocks <= _MAX_PAST_CANDIDATES:
        return tuple(range(1, max_past_blocks + 1))
    spread = np.geomspace(1, max_past_blocks, _MAX_PAST_CANDIDATES)
    return tuple(sorted({round(float(size)) for size in spread}))


def _prefill_planes(traffic: Traffic, limits: GearLimits, pasts: tuple[int, ...]) -> list[_Plane]:
    """One plane for each longest chunk; how prompts are cut depends on it."""
    # A chunk needs no more tokens than a sequence has; 2 is the least that is one.
    last = min(limits.max_chunk_tokens, max(2, traffic.max_model_len))
    steps = tuple(step for step in _STEPS if step >= _LEAST_CHUNK)
    return [
        _Plane(Phase.PREFILL, _up_to(steps, longest), pasts)
        for longest in _up_to(_LONGEST_CHUNKS, last)
    ]


def _full_chunks(plane: _Plane, traffic: Traffic) -> Mapping[Point, float]:
    longest = plane.firsts[-1]
    return traffic.prefill_points(dict.fromkeys(range(1, traffic.max_past_blocks + 1), longest))


def _up_to(steps: Sequence[int], last: int) -> tuple[int, ...]:
    return (*(step for step in steps if step < last), last)


def _reach(sizes: Sequence[int], wanted: int) -> int:
    """The first size that is no smaller."""
    return next(index for index, size in enumerate(sizes) if size >= wanted)
