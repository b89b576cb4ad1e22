"""NativeRows: the sampler's passes over rows of logits in the native library.

Owns the two structures of native.h that describe a row, and their filling. What is drawn is the
same as in `draw.py`, from weights that are rounded otherwise: another token comes out only where a
number falls within 4e-6 of the mass of an edge between two tokens, or of top_p.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from collections.abc import Sequence as Rows

import numpy as np
from numpy.typing import NDArray

from omruntime.errors import ConfigError
from omruntime.native import ThreadPool, find_library, load_library
from omruntime.sampling.draw import MAX_ATTEMPTS, Numbers, draw_token, resolved_filters
from omruntime.sampling.row_threads import most_threads
from omruntime.sampling_params import SamplingParams
from omruntime.step import ScoredToken, TokenLogprobs

logger = logging.getLogger(__name__)

Row = NDArray[np.float32]
Matrix = NDArray[np.float32]

# `om_draw` and `om_score` of native.h.
_DRAW = np.dtype(
    [
        ("scores", np.uintp),
        ("numbers", np.uintp),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("scale", np.float32),
        ("top_k", np.int32),
        ("num_numbers", np.int32),
        ("token_id", np.int32),
        ("best", np.float32),
    ],
    align=True,
)
_SCORE = np.dtype(
    [
        ("scores", np.uintp),
        ("best_ids", np.uintp),
        ("log_total", np.float64),
        ("token_id", np.int32),
        ("num_best", np.int32),
        ("num_better", np.int32),
        ("best", np.float32),
    ],
    align=True,
)

_FIRST = (0,)
# Numbers of the first try: with top_p 0.9 one row of a hundred needs a second.
_FEW_NUMBERS = 2

Filtered = tuple[SamplingParams, Numbers]
"""How a row is drawn from: resolved params with a temperature above 0, and its numbers."""


class NativeRows:
    """Draws from and scores rows, each by itself, so that threads and company change nothing.

    From any thread, with one row at a time; with several, from one thread.
    """

    def __init__(self, num_threads: int) -> None:
        """Load the library; no thread is started before it is needed.

        Raises:
            ConfigError: The library was not compiled, or does not load.
        """
        self._library = load_library()
        self._num_threads = num_threads
        self._pools: dict[bool, ThreadPool] = {}
        self._alone = self._pool_of(is_shared=False)

    def best(self, row: Row) -> int:
        """The first of the largest scores; one that is NaN when there is such."""
        return int(row.argmax())  # of one row in the cache, as fast as anything

    def draw(self, row: Row, params: SamplingParams, numbers: Numbers, best_id: int) -> int:
        """As `draw.draw_token`."""
        (token_id,), _ = self.choose(row[None], _FIRST, [(params, numbers)], is_shared=False)
        return token_id

    def logprobs(self, row: Row, token_id: int, k: int) -> TokenLogprobs:
        """As `numpy_rows.token_logprobs`."""
        (scored,) = self.score(row[None], _FIRST, [token_id], [k], is_shared=False)
        assert scored is not None, "logprobs of a row without a finite best score"
        return scored.logprobs

    def choose(
        self, rows: Matrix, which: Rows[int], ways: Rows[Filtered | None], *, is_shared: bool
    ) -> tuple[list[int], list[float]]:
        """Choose a token from each of some rows.

        Args:
            rows: float32 [rows, vocabulary]; rows may lie apart. Not changed.
            which: The rows to choose from.
            ways: One for each of them; None takes the best token, the first of equal ones.
            is_shared: Whether to share the rows out over threads.

        Returns:
            Token ids, and the best score of each row, NaN when one of its scores is. Where that
            is not finite the token id means nothing.
        """
        draws = self._drawn(rows, which, ways, is_shared)
        token_ids, bests = draws["token_id"].tolist(), draws["best"].tolist()
        for i, (token_id, way) in enumerate(zip(token_ids, ways, strict=True)):
            if token_id < 0 and way is not None and math.isfinite(bests[i]):
                # No number was let through: what the filters keep is listed.
                row = rows[which[i]]
                token_ids[i] = draw_token(row, *way, int(row.argmax()))
        return token_ids, bests

    def score(
        self,
        rows: Matrix,
        which: Rows[int],
        token_ids: Rows[int],
        ks: Rows[int],
        *,
        is_shared: bool,
    ) -> list[ScoredToken | None]:
        """Say how likely one token of each of some rows is.

        Args:
            rows, which: As in `choose`.
            token_ids: One for each row.
            ks: How many of the best to list for each row.

        Returns:
            One for each row; None where the best score is not finite.
        """
        scores = np.zeros(len(which), _SCORE)
        most = min(max(ks, default=0), rows.shape[1])
        best_ids = np.empty((len(which), most), np.int32)
        scores["scores"] = _addresses(rows)[list(which)]
        scores["best_ids"] = _addresses(best_ids)
        scores["token_id"], scores["num_best"] = token_ids, ks
        self._call(self._library.om_score_rows, scores, rows, is_shared)
        scored: list[ScoredToken | None] = []
        for index, fields, best in zip(which, scores, best_ids, strict=True):
            row = rows[index]
            if not math.isfinite(fields["best"]):
                scored.append(None)
                continue
            shift = float(fields["log_total"])
            listed = best[: fields["num_best"]]
            values = row[listed].tolist()
            top = tuple((i, x - shift) for i, x in zip(listed.tolist(), values, strict=True))
            logprobs = TokenLogprobs(float(row[fields["token_id"]]) - shift, top)
            scored.append(ScoredToken(logprobs, 1 + int(fields["num_better"])))
        return scored

    def _drawn(
        self, rows: Matrix, which: Rows[int], ways: Rows[Filtered | None], is_shared: bool
    ) -> NDArray[np.void]:
        """Draw by a few numbers for each row, and by all where none of them was let through."""
        draws = np.zeros(len(which), _DRAW)
        draws["scores"] = _addresses(rows)[list(which)]
        self._draw_by(_FEW_NUMBERS, draws, rows, ways, is_shared)
        if not any(ways):
            return draws
        refused = [
            i
            for i in np.flatnonzero(draws["token_id"] < 0).tolist()
            if ways[i] is not None and math.isfinite(draws["best"][i])
        ]
        if refused:
            again = draws[refused]
            self._draw_by(MAX_ATTEMPTS, again, rows, [ways[i] for i in refused], is_shared)
            draws[refused] = again
        return draws

    def _draw_by(
        self,
        num_numbers: int,
        draws: NDArray[np.void],
        rows: Matrix,
        ways: Rows[Filtered | None],
        is_shared: bool,
    ) -> None:
        numbers = np.zeros((len(draws), num_numbers), np.float64)
        draws["numbers"], draws["num_numbers"] = _addresses(numbers), num_numbers
        drawn = [i for i, way in enumerate(ways) if way is not None]
        if drawn:
            filters = [resolved_filters(way[0]) for way in ways if way is not None]
            draws["scale"][drawn], top_ks, draws["top_p"][drawn], draws["min_p"][drawn] = zip(
                *filters, strict=True
            )
            draws["top_k"][drawn] = [min(top_k, rows.shape[1]) for top_k in top_ks]
            attempts = range(num_numbers)
            numbers[drawn] = [[way[1](a) for a in attempts] for way in ways if way is not None]
        self._call(self._library.om_draw_rows, draws, rows, is_shared)

    def _call(
        self,
        function: Callable[..., None],
        entries: NDArray[np.void],
        rows: Matrix,
        is_shared: bool,
    ) -> None:
        pool = self._pool_of(is_shared=True) if is_shared else self._alone
        function(entries.ctypes.data, len(entries), rows.shape[1], pool.handle)

    def _pool_of(self, *, is_shared: bool) -> ThreadPool:
        if is_shared not in self._pools:
            self._pools[is_shared] = ThreadPool(self._num_threads if is_shared else 1)
        return self._pools[is_shared]


def open_native_rows() -> NativeRows | None:
    """The native passes; None where the library was not compiled, which NumPy stands in for."""
    if find_library() is None:
        logger.info("sampling goes by NumPy, as the native kernels are not compiled")
        return None
    try:
        return NativeRows(most_threads())
    except ConfigError as error:
        logger.warning("sampling goes by NumPy: %s", error)
        return None


def _addresses(rows: NDArray[np.generic]) -> NDArray[np.uintp]:
    """Where each row begins; a row lies in one piece."""
    assert rows.shape[1] < 2 or rows.strides[1] == rows.itemsize
    return np.uintp(rows.ctypes.data) + np.arange(len(rows), dtype=np.uintp) * np.uintp(
        rows.strides[0]
    )
