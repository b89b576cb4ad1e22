"""What the logits of a step say, row by row: the next token, or how likely the prompt's was."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omruntime.sampling.sampler import Sampler
from omruntime.step import RowResult, StepPlan


def read_logits(sampler: Sampler, plan: StepPlan, logits: NDArray[np.float32]) -> list[RowResult]:
    """The next token of every row that samples, the score of every row that scores.

    The others are looked at all the same: one whose logits are no numbers has failed, before what
    it wrote can reach anybody else.

    Args:
        sampler: Draws and scores.
        plan: The step that ran.
        logits: float32 [rows, vocab_size], row i for `plan.rows[i]`.
    """
    results: list[RowResult] = [None] * len(plan.rows)
    sampling = [i for i, row in enumerate(plan.rows) if row.samples]
    sequences = [plan.rows[i].sequence for i in sampling]
    if sampling:
        tokens = sampler.sample(_rows_of(logits, sampling, plan), sequences)
        for i, token in zip(sampling, tokens, strict=True):
            results[i] = token
    scoring = [i for i, row in enumerate(plan.rows) if row.scores]
    if scoring:
        scores = sampler.score(_rows_of(logits, scoring, plan), [plan.rows[i] for i in scoring])
        for i, score in zip(scoring, scores, strict=True):
            results[i] = score
    for i, row in enumerate(plan.rows):
        if not (row.samples or row.scores):
            results[i] = sampler.check(logits[i])
    return results


def _rows_of(
    logits: NDArray[np.float32], indices: list[int], plan: StepPlan
) -> NDArray[np.float32]:
    """The logits of some rows; as they lie, without a copy, when it is all of them."""
    return logits if len(indices) == len(plan.rows) else logits[indices]
