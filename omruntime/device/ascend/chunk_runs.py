"""Copies of equal chunks, joined where both sides go on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ChunkRuns:
    """Runs of chunks that follow each other in target and source.

    Attributes:
        targets, sources: First chunk of each run.
        lengths: Chunks of each.
    """

    targets: list[int]
    sources: list[int]
    lengths: list[int]


def join_chunks(targets: NDArray[np.int64], sources: NDArray[np.int64]) -> ChunkRuns:
    """Join chunk copies into the fewest runs that keep their order."""
    if targets.size == 0:
        return ChunkRuns([], [], [])
    breaks = (np.diff(targets) != 1) | (np.diff(sources) != 1)
    starts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    ends = np.append(starts[1:], targets.size)
    return ChunkRuns(targets[starts].tolist(), sources[starts].tolist(), (ends - starts).tolist())
