"""Arrival times of an open loop: gaps of a gamma distribution, Poisson in the plain case."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator


def arrival_times(
    draw: random.Random, requests_a_second: float, burstiness: float = 1.0
) -> Iterator[float]:
    """Times in seconds, counting from 0, without end; equal generators give equal times.

    Args:
        draw: Asked once for each arrival.
        requests_a_second: Mean rate, above 0; infinite has everything arrive at 0.
        burstiness: Shape of the gamma distribution of the gaps, above 0. 1 is Poisson; below 1
            requests come in bursts, above 1 more evenly.
    """
    if math.isinf(requests_a_second):
        while True:
            yield 0.0
    now, scale_s = 0.0, 1.0 / (requests_a_second * burstiness)
    while True:
        now += draw.gammavariate(burstiness, scale_s)
        yield now
