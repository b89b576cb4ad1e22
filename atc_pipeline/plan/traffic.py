"""Traffic: which steps a recorded traffic leads to, and how often.

A step is a point in the plane of its phase: decode (rows, past blocks), prefill (tokens, past
blocks) with one row. Assumptions, all stated in the plan's report:

    decode   requests arrive by themselves and the server keeps up, so the number in flight is
             Poisson about a given mean; above max_num_seqs they queue. Several means stand for
             quiet and busy times of equal share. The rows of a step are independent, and a
             step's past is the longest of its rows'.
    prefill  a prompt is computed in full chunks and one remainder, alone in its steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from atc_pipeline.plan.lengths import RequestLength
from omruntime.errors import ConfigError

Point = tuple[int, int]


@dataclass(frozen=True)
class Traffic:
    """Requests that the server accepts, and how many are in flight.

    Attributes:
        requests: Within max_model_len; see `fit_requests`.
        concurrency: Mean numbers of requests in flight; at least one.
    """

    requests: tuple[RequestLength, ...]
    concurrency: tuple[float, ...]
    max_num_seqs: int
    max_model_len: int
    block_size: int

    @property
    def max_past_blocks(self) -> int:
        """Blocks behind the last position."""
        return self.blocks(self.max_model_len - 1)

    def blocks(self, num_positions: int) -> int:
        """Blocks that hold so many positions; no bucket has fewer than 1."""
        return max(1, -(-num_positions // self.block_size))

    @cached_property
    def decode_points(self) -> Mapping[Point, float]:
        """(rows, past blocks) -> steps per request."""
        row_steps = self._row_steps()
        total = sum(row_steps.values())
        if not total:
            return {}
        rows = self._row_shares()
        mean_rows = sum(n * share for n, share in rows.items())
        steps = total / len(self.requests) / mean_rows
        points: dict[Point, float] = {}
        below, seen = 0.0, 0
        for past in sorted(row_steps):
            seen += row_steps[past]
            upto = seen / total
            for n, share in rows.items():
                # The longest of n independent rows.
                points[n, past] = steps * share * (upto**n - below**n)
            below = upto
        return points

    def prefill_points(self, longest_chunk: Mapping[int, int]) -> Mapping[Point, float]:
        """(tokens, past blocks) -> steps per request.

        Args:
            longest_chunk: By past blocks, the longest chunk that a bucket takes there; all of 1
                to `max_past_blocks` are there.
        """
        counts: Counter[Point] = Counter()
        for request in self.requests:
            at = min(request.cached_tokens, request.prompt_tokens - 1)
            while at < request.prompt_tokens:
                past = self.blocks(at)
                tokens = min(longest_chunk[past], request.prompt_tokens - at)
                counts[tokens, past] += 1
                at += tokens
        return {point: count / len(self.requests) for point, count in counts.items()}

    def _row_steps(self) -> Mapping[int, int]:
        """Decode steps of all requests by the row's own past blocks."""
        counts: Counter[int] = Counter()
        for request in self.requests:
            at, end = request.prompt_tokens, request.prompt_tokens + request.output_tokens - 1
            while at < end:
                past = self.blocks(at)
                upto = min(end, past * self.block_size + 1)
                counts[past] += upto - at
                at = upto
        return counts

    def _row_shares(self) -> Mapping[int, float]:
        """How large a share of the decode steps has so many rows."""
        shares: dict[int, float] = {}
        for mean in self.concurrency:
            for n, share in _poisson_shares(mean, self.max_num_seqs).items():
                shares[n] = shares.get(n, 0.0) + share / len(self.concurrency)
        return shares


def _poisson_shares(mean: float, most: int) -> Mapping[int, float]:
    """Poisson about a mean, without 0, and with all beyond `most` at `most`."""
    logs = [n * math.log(mean) - mean - math.lgamma(n + 1) for n in range(1, most)]
    shares = {n: math.exp(value) for n, value in enumerate(logs, start=1)}
    shares[most] = max(0.0, -math.expm1(-mean) - sum(shares.values()))
    total = sum(shares.values())
    return {n: share / total for n, share in shares.items() if share > 0.0}


def fit_requests(
    requests: Sequence[RequestLength], max_model_len: int
) -> tuple[tuple[RequestLength, ...], int, int]:
    """The requests as a server of that length serves them; how many it refuses and cuts short.

    Raises:
        ConfigError: It refuses all of them.
    """
    kept, num_cut = [], 0
    for request in requests:
        room = max_model_len - request.prompt_tokens
        if room < 1:
            continue
        num_cut += request.output_tokens > room
        outputs = min(request.output_tokens, room)
        kept.append(RequestLength(request.prompt_tokens, outputs, request.cached_tokens))
    if not kept:
        raise ConfigError(
            f"every prompt has {max_model_len} tokens or more, which is max_model_len; raise "
            f"--max-model-len"
        )
    return tuple(kept), len(requests) - len(kept), num_cut
