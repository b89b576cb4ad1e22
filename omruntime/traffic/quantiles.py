"""Quantiles of measured values."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(ascending: Sequence[float], share: float) -> float:
    """The value behind a share of all values; always one that was measured, never in between.

    Args:
        ascending: Sorted values; of none the quantile is 0.
        share: From 0, the least value, to 1, the greatest.
    """
    if not ascending:
        return 0.0
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]
