"""ParityReport: what the parity gate compared and how far off it was.

Owns the sums over rows, and reports/parity.json. What is compared is `parity.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from export.tolerance import Tolerance
from omruntime.errors import ParityError
from omruntime.manifest import ParitySummary


@dataclass(slots=True)
class ParityReport:
    """What was compared, and the largest difference found.

    Attributes:
        num_overflowed_rows: Rows that were not finite, where that is accepted.
        num_near_ties: Greedy tokens that differ, the checkpoint's own logits being too close.
        cases: One line for each step or answer: what ran and how far off it was.
    """

    dtype: str
    limits: Tolerance
    max_abs_logit: float = 0.0
    max_abs_logits_diff: float = 0.0
    sum_logits_diff: float = 0.0
    max_abs_kv_diff: float = 0.0
    max_kl: float = 0.0
    sum_kl: float = 0.0
    num_rows: int = 0
    num_top1_equal: int = 0
    num_overflowed_rows: int = 0
    num_greedy_tokens: int = 0
    num_near_ties: int = 0
    cases: list[str] = field(default_factory=list)

    def add_row(
        self, got: NDArray[np.float32], wanted: NDArray[np.float32], kv_diff: float
    ) -> None:
        """Note one teacher-forced row of logits, [vocabulary]."""
        diff, divergence = float(np.abs(got - wanted).max()), _kl(wanted, got)
        self.num_rows += 1
        self.num_top1_equal += int(got.argmax() == wanted.argmax())
        self.max_abs_logit = max(self.max_abs_logit, float(np.abs(wanted).max()))
        self.max_abs_logits_diff = max(self.max_abs_logits_diff, diff)
        self.max_abs_kv_diff = max(self.max_abs_kv_diff, kv_diff)
        self.max_kl = max(self.max_kl, divergence)
        self.sum_logits_diff += diff
        self.sum_kl += divergence

    def require_mean(self) -> None:
        """Hold the mean of the rows' differences against its limit.

        Raises:
            ParityError: It is beyond; no single row shows why.
        """
        limit = self.limits.mean_logits
        if limit is None or not self.num_rows:
            return
        mean = self.sum_logits_diff / self.num_rows
        if not mean <= limit:
            raise ParityError(
                f"the rows' logits differ by {mean:.3g} on the average, tolerance {limit:.3g}, "
                f"each row within its own {self.limits.logits:.3g}: the graph rounds more than "
                f"its type explains"
            )

    def plain(self) -> dict[str, object]:
        """The content of reports/parity.json."""
        rows = max(1, self.num_rows)
        return {
            "dtype": self.dtype,
            "tolerance": self.limits.logits,
            "tolerance_of_mean": self.limits.mean_logits,
            "expected_logits_diff": self.limits.expected,
            "near_tie": self.limits.near_tie,
            "max_abs_logit": self.max_abs_logit,
            "max_abs_logits_diff": self.max_abs_logits_diff,
            "mean_abs_logits_diff": self.sum_logits_diff / rows,
            "max_abs_kv_diff": self.max_abs_kv_diff,
            "max_kl": self.max_kl,
            "mean_kl": self.sum_kl / rows,
            "num_rows": self.num_rows,
            "top1_agreement": self.num_top1_equal / rows,
            "num_overflowed_rows": self.num_overflowed_rows,
            "num_greedy_tokens": self.num_greedy_tokens,
            "num_near_ties": self.num_near_ties,
            "cases": self.cases,
        }

    def summary(self) -> ParitySummary:
        """The part that goes into the manifest."""
        return ParitySummary(
            max_abs_logits_diff=self.max_abs_logits_diff,
            tolerance=self.limits.logits,
            num_greedy_tokens=self.num_greedy_tokens,
            num_near_ties=self.num_near_ties,
            num_cases=len(self.cases),
        )


def _kl(wanted: NDArray[np.float32], got: NDArray[np.float32]) -> float:
    """Of the distributions that two rows of logits stand for, in nats."""
    log_wanted, log_got = log_softmax(wanted), log_softmax(got)
    return float((np.exp(log_wanted) * (log_wanted - log_got)).sum())


def log_softmax(row: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log probabilities of a row of logits, [vocabulary]."""
    shifted = row.astype(np.float64) - float(row.max())
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))
