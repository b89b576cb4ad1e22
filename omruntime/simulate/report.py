"""Report: figures of simulated runs as lines of a table."""

from __future__ import annotations

from typing import NamedTuple

from omruntime.scheduling.phase_policy import Targets
from omruntime.simulate.replay import Replayed
from omruntime.traffic.quantiles import quantile

HEADINGS = (
    "load  policy                     waste  goodput/s  tokens/s  "
    "ttft p50   p99 s  itl p50   p99 ms"
)


class Figures(NamedTuple):
    """What one run gives.

    Attributes:
        waste: Share of the places in steps that were padding.
        goodput: Requests a second that met both targets, the mean time between tokens counting.
    """

    waste: float
    goodput: float
    tokens_a_second: float
    ttft_p50_s: float
    ttft_p99_s: float
    itl_p50_s: float
    itl_p99_s: float


def figures_of(run: Replayed, targets: Targets) -> Figures:
    """Sum a run up."""
    ttfts = sorted(r.ttft_s for r in run.requests)
    gaps = sorted(gap for r in run.requests for gap in r.gaps_s)
    num_good = 0
    for request in run.requests:
        mean_gap = sum(request.gaps_s) / max(1, len(request.gaps_s))
        num_good += request.ttft_s <= targets.ttft_s and mean_gap <= targets.itl_s
    num_tokens = sum(len(r.token_times) for r in run.requests)
    return Figures(
        waste=1 - run.num_useful / run.num_padded,
        goodput=num_good / run.duration_s,
        tokens_a_second=num_tokens / run.duration_s,
        ttft_p50_s=quantile(ttfts, 0.5),
        ttft_p99_s=quantile(ttfts, 0.99),
        itl_p50_s=quantile(gaps, 0.5),
        itl_p99_s=quantile(gaps, 0.99),
    )


def line_of(load: float, policy: str, f: Figures) -> str:
    """One line below `HEADINGS`."""
    return (
        f"{load:4.1f}  {policy:25} {f.waste:6.1%} {f.goodput:10.2f} {f.tokens_a_second:9.1f} "
        f"{f.ttft_p50_s:9.2f} {f.ttft_p99_s:7.2f} {f.itl_p50_s * 1e3:8.0f} "
        f"{f.itl_p99_s * 1e3:8.0f}"
    )
