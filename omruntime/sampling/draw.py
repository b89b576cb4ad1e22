"""Temperature, top_k, top_p, min_p and the draw of one token from a row.

The filters keep what transformers' warpers keep, in the same order. Nothing sorts the vocabulary:
a token is drawn from the whole row and drawn again when the filters would not have kept it, which
gives the same probabilities and takes two passes over the row at least, and rarely more. Rows are
treated one by one because a row fits into a core's cache and 32 rows do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from omruntime.sampling.row_workspace import workspace
from omruntime.sampling_params import SamplingParams

Row = NDArray[np.float32]
TokenIds = NDArray[np.int64]

Numbers = Callable[[int], float]
"""The uniform number in [0, 1) of an attempt, counted from 0; equal ones at each call."""

# Draws that are refused before the kept tokens are listed after all: a narrow nucleus of a flat
# row refuses most.
MAX_ATTEMPTS = 8
# Shares of the best token's probability at which the search for the nucleus cuts the vocabulary:
# peaked distributions end at the first; flat ones pass all and sort everything.
_NUCLEUS_CUTS = (2.0**-5, 2.0**-8, 2.0**-11, 2.0**-15, 0.0)
_LOW_BITS = np.uint64(0xFFFFFFFF)
# Hotter than this all tokens are equally likely anyway, and float32 would overflow.
_MAX_TEMPERATURE = 1e30
# Weights are summed up in runs of this length, and only one run is looked into.
_RUN = 1024
# Exponents of the best token up to which float32 holds its exponential and all that matters
# beside it; the subtraction of the best, a pass over the row, is then left out.
_LEAST_EXPONENT, _MOST_EXPONENT = -20.0, 60.0
# Up to so many better tokens are summed up one by one.
_FEW = 1000
# Columns of a row whose maxima bound the k-th best score from below.
_NUM_STRIPES = 1024


def draw_token(scores: Row, params: SamplingParams, numbers: Numbers, best_id: int) -> int:
    """Draw the next token.

    Args:
        scores: float32 [vocab_size]; -inf cannot be drawn. Not changed.
        params: Resolved, with a temperature above 0.
        numbers: Equal scores, params and numbers give an equal token.
        best_id: The first of the largest scores, which must be finite.
    """
    scale, top_k, top_p, min_p = resolved_filters(params)
    if 0 < top_k < len(scores):
        token_ids = best_k(scores, top_k)
        return int(token_ids[_draw(_weigh(scores[token_ids], scale), top_p, min_p, numbers)])
    return _draw(_weigh(scores, scale, best_id), top_p, min_p, numbers)


def kept_tokens(scores: Row, params: SamplingParams) -> tuple[TokenIds | None, Row]:
    """What the filters keep, listed.

    Returns:
        Token ids, None standing for all in order, and float32 weights, proportional to their
        probabilities.
    """
    scale, top_k, top_p, min_p = resolved_filters(params)
    token_ids = None
    if 0 < top_k < len(scores):
        token_ids = best_k(scores, top_k)
        scores = scores[token_ids]
    weighed = _weigh(scores, scale)
    kept = _kept(weighed, top_p, min_p)
    if kept is None:
        return token_ids, weighed.weights.copy()
    return kept if token_ids is None else token_ids[kept], weighed.weights[kept]


def best_k(scores: Row, k: int) -> TokenIds:
    """Ids of all scores that reach the k-th best, in order; more than k when it is tied."""
    candidates = _candidates(scores, k)
    values = scores if candidates is None else scores[candidates]
    worst = np.partition(values, len(values) - k)[len(values) - k]
    best = np.flatnonzero(values >= worst)
    return best if candidates is None else candidates[best]


def _candidates(scores: Row, k: int) -> TokenIds | None:
    """A few ids that include the best k; None when there is no cheap way to them.

    The k-th best of the stripes' maxima is reached by k scores at least.
    """
    depth = len(scores) // _NUM_STRIPES
    if depth < 4 or 2 * k > _NUM_STRIPES:
        return None
    maxima = scores[: depth * _NUM_STRIPES].reshape(depth, _NUM_STRIPES).max(axis=0)
    bound = np.partition(maxima, _NUM_STRIPES - k)[_NUM_STRIPES - k]
    return np.flatnonzero(scores >= bound)


def resolved_filters(params: SamplingParams) -> tuple[float, int, float, float]:
    """What scores are multiplied by, top_k, top_p and min_p of resolved params."""
    values = (params.temperature, params.top_k, params.top_p, params.min_p)
    temperature, top_k, top_p, min_p = values
    assert temperature is not None
    assert top_k is not None
    assert top_p is not None
    assert min_p is not None
    return 1 / min(temperature, _MAX_TEMPERATURE), top_k, top_p, min_p


class _Weighed(NamedTuple):
    """Unnormalised probabilities, in the thread's workspace, their scores, and the best one."""

    scores: Row
    weights: Row
    best_id: int

    @property
    def best(self) -> float:
        """The largest weight."""
        return float(self.weights[self.best_id])


def _weigh(scores: Row, factor: float, best_id: int | None = None) -> _Weighed:
    if best_id is None:
        best_id = int(scores.argmax())
    weights, best = workspace.floats(0, len(scores)), scores[best_id]
    scale = np.float32(factor)
    with np.errstate(over="ignore", under="ignore"):
        if _LEAST_EXPONENT <= best * scale <= _MOST_EXPONENT:
            scaled = scores if factor == 1.0 else np.multiply(scores, scale, out=weights)
        else:
            scaled = np.subtract(scores, best, out=weights)
            scaled *= scale
        np.exp(scaled, out=weights)
    return _Weighed(scores, weights, best_id)


def _draw(weighed: _Weighed, top_p: float, min_p: float, numbers: Numbers) -> int:
    weights, sums = weighed.weights, RunningSum(weighed.weights)
    wanted, least = top_p * sums.total, min_p * weighed.best
    if top_p < 1.0 and wanted <= weighed.best:
        return weighed.best_id  # it alone has the mass
    for attempt in range(MAX_ATTEMPTS):
        choice = sums.at(numbers(attempt))
        if choice == weighed.best_id:
            return choice
        if weights[choice] >= least and (top_p == 1.0 or mass_above(weighed, choice) < wanted):
            return choice
    kept = _kept(weighed, top_p, min_p)
    assert kept is not None, "a draw was refused although nothing is filtered"
    return int(kept[RunningSum(weights[kept]).at(numbers(MAX_ATTEMPTS))])


def mass_above(weighed: _Weighed, choice: int) -> float:
    """The sum of the weights of better scores than one; of equal ones the lower index is."""
    scores, weights, _ = weighed
    better = workspace.flags(len(weights))
    score = scores[choice]
    np.greater_equal(scores[:choice], score, out=better[:choice])
    np.greater(scores[choice:], score, out=better[choice:])
    if len(weights) <= _FEW or np.count_nonzero(better) <= _FEW:
        return float(weights[np.flatnonzero(better)].sum(dtype=np.float64))
    chosen = workspace.floats(1, len(weights))
    np.copyto(chosen, better)
    return float(np.einsum("i,i->", weights, chosen))


def _kept(weighed: _Weighed, top_p: float, min_p: float) -> TokenIds | None:
    """Indices that top_p and min_p keep; None when neither filters."""
    weights, kept = weighed.weights, None
    if top_p < 1.0:
        kept = _nucleus(weighed, top_p)
    if min_p > 0.0:
        likely = np.flatnonzero(
            (weights if kept is None else weights[kept]) >= min_p * weighed.best
        )
        kept = likely if kept is None else kept[likely]
    return kept


def _nucleus(weighed: _Weighed, top_p: float) -> TokenIds:
    """Indices, best first, of the tokens whose betters have less than `top_p` of the mass.

    Of equal weights the lower index is the better one; transformers leaves this to an unstable
    sort.
    """
    weights = weighed.weights
    wanted = top_p * RunningSum(weights).total
    for cut in _NUCLEUS_CUTS:
        candidates = np.flatnonzero(weights >= cut * weighed.best)
        if weights[candidates].sum() >= wanted:
            break
    ordered = _best_first(weights, candidates)
    mass = np.cumsum(weights[ordered], dtype=np.float64)
    return ordered[: np.searchsorted(mass, wanted, side="left") + 1]


def _best_first(weights: Row, indices: TokenIds) -> TokenIds:
    # The bits of floats that are not negative sort as the floats do, and sorting whole keys
    # decides ties at once, which an unstable argsort would not and a stable one does slowly.
    bits = weights[indices].view(np.uint32).astype(np.uint64)
    keys = (bits << np.uint64(32)) | (_LOW_BITS - indices.astype(np.uint64))
    keys.sort()
    return (_LOW_BITS - (keys[::-1] & _LOW_BITS)).astype(np.int64)


class RunningSum:
    """The running sum of a row of weights, of which only one run is worked out at a time.

    A plain running sum is slow, as each step waits for the last.
    """

    def __init__(self, weights: Row) -> None:
        self._weights = weights
        num_runs = len(weights) // _RUN
        whole = num_runs * _RUN
        self._ends = np.empty(num_runs + 1, np.float64)
        self._ends[:num_runs] = np.einsum("ij->i", weights[:whole].reshape(num_runs, _RUN))
        self._ends[num_runs] = weights[whole:].sum()
        self._ends.cumsum(out=self._ends)
        self.total = float(self._ends[-1])

    def at(self, share: float) -> int:
        """The index at which the running sum passes a share in [0, 1) of the total."""
        target = share * self.total
        run = _passed(self._ends, target)
        before = self._ends[run - 1] if run > 0 else 0.0
        within = self._weights[run * _RUN : (run + 1) * _RUN].cumsum(dtype=np.float64)
        return run * _RUN + _passed(within, target - before)


def _passed(mass: NDArray[np.float64], target: float) -> int:
    """The first index whose running sum passes the target; never one without weight."""
    index = int(mass.searchsorted(target, side="right"))
    # Rounding may lift the target to the total or above.
    return index if index < len(mass) else int(mass.searchsorted(mass[-1], side="left"))


def log_total(scores: Row) -> float:
    """The logarithm of the sum of the exponentials of finite scores, or -inf among them."""
    best = scores.max()
    with np.errstate(over="ignore", under="ignore"):  # scores may lie as far apart as floats do
        weights = np.subtract(scores, best, out=workspace.floats(0, len(scores)))
        np.exp(weights, out=weights)
    return float(best) + math.log(RunningSum(weights).total)
