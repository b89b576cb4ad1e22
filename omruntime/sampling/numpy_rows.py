"""NumpyRows: the sampler's passes over a row of logits in NumPy, where nothing is compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omruntime.sampling.draw import Numbers, best_k, draw_token, log_total
from omruntime.sampling_params import SamplingParams
from omruntime.step import TokenLogprobs

Row = NDArray[np.float32]


class NumpyRows:
    """One row at a time; from any thread."""

    def best(self, row: Row) -> int:
        """The first of the largest scores; one that is NaN when there is such."""
        return int(row.argmax())

    def draw(self, row: Row, params: SamplingParams, numbers: Numbers, best_id: int) -> int:
        """See `draw.draw_token`."""
        return draw_token(row, params, numbers, best_id)

    def logprobs(self, row: Row, token_id: int, k: int) -> TokenLogprobs:
        """See `token_logprobs`."""
        return token_logprobs(row, token_id, k)


def token_logprobs(row: Row, token_id: int, k: int) -> TokenLogprobs:
    """Log-softmax of a row of the model's own logits, float32 [vocab_size].

    Args:
        row: Finite, but for -inf.
        token_id: The chosen one, or the prompt's.
        k: How many of the best to list, best first, equal ones by lower id.
    """
    shift = log_total(row)
    k = min(k, len(row))
    top: list[tuple[int, float]] = []
    if k > 0:
        candidates = best_k(row, k)
        order = np.lexsort((candidates, -row[candidates]))[:k]
        top = [(int(i), float(row[i]) - shift) for i in candidates[order]]
    return TokenLogprobs(float(row[token_id]) - shift, tuple(top))
