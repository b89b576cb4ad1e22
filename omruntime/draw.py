"""Temperature, top_k, top_p, min_p and the draw of one token from a row.

The filters keep what transformers' warpers keep, in the same order. They are exact, yet none
sorts the vocabulary unless nearly all of it is kept: each first narrows it down by a comparison.
Rows are treated one by one because a row fits into a core's cache and 32 rows do not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omruntime.sampling_params import SamplingParams

Row = NDArray[np.float32]
TokenIds = NDArray[np.int64]

# Shares of the best token's probability at which the search for the nucleus cuts the vocabulary:
# peaked distributions end at the first; flat ones pass all and sort everything.
_NUCLEUS_CUTS = (2.0**-5, 2.0**-8, 2.0**-11, 2.0**-15, 0.0)
_LOW_BITS = np.uint64(0xFFFFFFFF)
# Hotter than this all tokens are equally likely anyway, and float32 would overflow.
_MAX_TEMPERATURE = 1e30
_BLOCK = 256
_MAX_PLAIN_SUM = 4096


def draw_token(scores: Row, params: SamplingParams, uniform: float) -> int:
    """Draw the next token.

    Args:
        scores: float32 [vocab_size], the largest finite; -inf cannot be drawn. Not changed.
        params: Resolved, with a temperature above 0.
        uniform: In [0, 1); equal scores, params and number give an equal token.
    """
    token_ids, weights = kept_tokens(scores, params)
    choice = _pick(weights, uniform)
    return choice if token_ids is None else int(token_ids[choice])


def kept_tokens(scores: Row, params: SamplingParams) -> tuple[TokenIds | None, Row]:
    """What the filters keep.

    Returns:
        Token ids, None standing for all in order, and float32 weights, proportional to their
        probabilities, the best token's being 1.
    """
    temperature, top_k, top_p, min_p = _resolved(params)
    token_ids = None
    best = scores.max()
    if 0 < top_k < len(scores):
        token_ids = _best_k(scores, top_k)
        scores = scores[token_ids]
    with np.errstate(over="ignore"):
        weights = scores - best
        weights /= np.float32(min(temperature, _MAX_TEMPERATURE))
    np.exp(weights, out=weights)
    if top_p < 1.0:
        nucleus = _nucleus(weights, top_p)
        token_ids = nucleus if token_ids is None else token_ids[nucleus]
        weights = weights[nucleus]
    if min_p > 0.0:
        likely = np.flatnonzero(weights >= np.float32(min_p))
        token_ids = likely if token_ids is None else token_ids[likely]
        weights = weights[likely]
    return token_ids, weights


def _resolved(params: SamplingParams) -> tuple[float, int, float, float]:
    values = (params.temperature, params.top_k, params.top_p, params.min_p)
    temperature, top_k, top_p, min_p = values
    assert temperature is not None
    assert top_k is not None
    assert top_p is not None
    assert min_p is not None
    return temperature, top_k, top_p, min_p


def _best_k(scores: Row, k: int) -> TokenIds:
    """Ids of all scores that reach the k-th best; more than k when it is tied."""
    worst = np.partition(scores, len(scores) - k)[len(scores) - k]
    return np.flatnonzero(scores >= worst)


def _nucleus(weights: Row, top_p: float) -> TokenIds:
    """Indices, best first, of the tokens whose betters have less than `top_p` of the mass.

    Of equal weights the lower index is the better one; transformers leaves this to an unstable
    sort.
    """
    wanted = top_p * float(weights.sum())
    for cut in _NUCLEUS_CUTS:
        candidates = np.flatnonzero(weights >= np.float32(cut))
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


def _pick(weights: Row, uniform: float) -> int:
    """The index at which the running sum of the weights passes `uniform` of their total."""
    if len(weights) <= _MAX_PLAIN_SUM:
        mass = np.cumsum(weights, dtype=np.float64)
        return _passed(mass, uniform * mass[-1])
    # A running sum is slow, as each step waits for the last: find the block first.
    starts = np.arange(0, len(weights), _BLOCK)
    mass = np.cumsum(np.add.reduceat(weights, starts), dtype=np.float64)
    target = uniform * mass[-1]
    block = _passed(mass, target)
    before = mass[block - 1] if block > 0 else 0.0
    within = np.cumsum(weights[block * _BLOCK : (block + 1) * _BLOCK], dtype=np.float64)
    return block * _BLOCK + _passed(within, target - before)


def _passed(mass: NDArray[np.float64], target: float) -> int:
    """The first index whose running sum passes the target; never one without weight."""
    # Rounding may lift the target to the total or above.
    last = np.searchsorted(mass, mass[-1], side="left")
    return int(min(np.searchsorted(mass, target, side="right"), last))
