"""Sampler: logits of a step -> the next token of every row, or the prompt's, and logprobs.

Owns the order of things: check the logits, edit (`logits.py`), filter and draw (`draw.py`).
Whether a token ends its sequence is the engine's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Rows
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from omruntime.errors import RequestError
from omruntime.manifest import SamplingDefaults
from omruntime.sampling.draw import Numbers
from omruntime.sampling.logits import LogitsEditor, Row
from omruntime.sampling.native_rows import Filtered, NativeRows
from omruntime.sampling.numpy_rows import NumpyRows, token_logprobs
from omruntime.sampling.row_threads import LEAST_NUMBERS, RowThreads
from omruntime.sampling.row_workspace import workspace
from omruntime.sampling.seeds import uniform
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import Request, Sequence
from omruntime.step import RowPlan, SampledToken, SamplingFailure, ScoredToken, TokenLogprobs

# Rows of a large step; a vocabulary that needs more for threads to pay is sampled by one.
_MOST_TIMED_ROWS = 64
# Numbers of a greedy step below which rows go one by one: describing them all to the native library
# takes as long as NumPy's search through so many.
_LEAST_AT_ONCE = 1 << 19


class RowPasses(Protocol):
    """What is done with one row of scores; from any thread."""

    def best(self, row: Row) -> int:
        """See `NumpyRows.best`."""

    def draw(self, row: Row, params: SamplingParams, numbers: Numbers, best_id: int) -> int:
        """See `NumpyRows.draw`."""

    def logprobs(self, row: Row, token_id: int, k: int) -> TokenLogprobs:
        """See `NumpyRows.logprobs`."""


class Sampler:
    """Chooses next tokens; used by the engine thread alone."""

    def __init__(
        self, vocab_size: int, eos_token_ids: Iterable[int], native: NativeRows | None = None
    ) -> None:
        """Prepare.

        Args:
            native: What takes all rows of a step at once; None leaves every row to NumPy.
        """
        self._vocab_size = vocab_size
        self._native = native
        self._passes: RowPasses = native or NumpyRows()
        self._editor = LogitsEditor(eos_token_ids)
        self._threads = RowThreads()

    @property
    def num_threads(self) -> int:
        """Threads that sample a large step; settled by `warm_up`."""
        return self._threads.num_threads

    def warm_up(self) -> None:
        """Go every way once, so that no request pays for first calls."""
        row = np.zeros((1, self._vocab_size), np.float32)
        ways = (
            SamplingParams(temperature=0.0, logprobs=1),
            SamplingParams(temperature=1.0, top_k=2, top_p=0.9, min_p=0.1, seed=0),
            SamplingParams(temperature=1.0, seed=0, repetition_penalty=1.1, presence_penalty=1.0),
        )
        for params in ways:
            resolved = params.resolve(SamplingDefaults())
            self.sample(row, [Sequence.of(Request("warm-up", (0,), resolved), 0)])
        if _MOST_TIMED_ROWS * self._vocab_size >= LEAST_NUMBERS:  # else no step is that large
            self._threads.calibrate(self._timed_step)
        self._editor.forget_all()

    def _timed_step(self) -> float:
        """The seconds of a step that is large enough for threads."""
        rows = np.ones((1 + LEAST_NUMBERS // self._vocab_size, self._vocab_size), np.float32)
        drawn = SamplingParams(temperature=1.0, seed=0).resolve(SamplingDefaults())
        sequences = [Sequence.of(Request("warm-up", (0,), drawn), 0)] * len(rows)
        start = perf_counter()
        self.sample(rows, sequences)
        return perf_counter() - start

    def sample(
        self, logits: NDArray[Any], sequences: Rows[Sequence]
    ) -> list[SampledToken | SamplingFailure]:
        """Choose one token for each sequence.

        A row depends on nothing but its logits, its sequence's tokens and its params (resolved
        and with a seed, see `seeds.with_seed`), so equal requests get equal tokens in any batch.

        Args:
            logits: float32 or float16 [rows, vocabulary]; row i belongs to sequence i. Rows and
                columns beyond the sequences and the vocabulary are padding. Not changed.
            sequences: One for each row that samples.

        Returns:
            In the order of the sequences. A failure when the row's logits hold NaN or +inf or
            no finite value, or when the params leave nothing to choose; other rows are not
            affected.
        """
        self._editor.drop_finished()
        if not sequences:
            return []
        rows = np.asarray(logits[: len(sequences), : self._vocab_size], dtype=np.float32)
        assert rows.shape == (len(sequences), self._vocab_size), rows.shape
        is_light = rows.size < _LEAST_AT_ONCE and all(s.params.is_greedy for s in sequences)
        if self._native is None or is_light:
            return self._threads.map(self._sample_rows, list(rows), sequences)
        return self._sample_natively(self._native, rows, sequences)

    def score(
        self, logits: NDArray[Any], rows: Rows[RowPlan]
    ) -> list[ScoredToken | SamplingFailure]:
        """Say of each row how likely the prompt's next token was, by the model's own logits.

        Args:
            logits: As in `sample`; row i belongs to `rows[i]`. Not changed.
            rows: Each over one position of its prompt that is not the last.

        Returns:
            In the order of the rows; a failure as in `sample`.
        """
        read = np.asarray(logits[: len(rows), : self._vocab_size], dtype=np.float32)
        assert read.shape == (len(rows), self._vocab_size), read.shape
        if self._native is None:
            return self._threads.map(_score_rows, list(read), rows)
        return _score_natively(self._native, read, rows, self._threads.is_shared(read))

    def check(self, row: Row) -> SamplingFailure | None:
        """Why logits [vocabulary] that nothing is chosen by are no model's; None when they are."""
        largest = float(row[: self._vocab_size].max())
        return None if math.isfinite(largest) else _no_numbers(largest)

    def _sample_natively(
        self, native: NativeRows, rows: NDArray[np.float32], sequences: Rows[Sequence]
    ) -> list[SampledToken | SamplingFailure]:
        """All rows at once but those that are edited first."""
        edited = [i for i, s in enumerate(sequences) if self._editor.changes(s)]
        plain = sorted(set(range(len(sequences))) - set(edited))
        results: dict[int, SampledToken | SamplingFailure] = {}
        if plain:
            found = self._sample_plain(native, rows, plain, [sequences[i] for i in plain])
            results.update(zip(plain, found, strict=True))
        if edited:
            parts = [rows[i] for i in edited], [sequences[i] for i in edited]
            results.update(zip(edited, self._threads.map(self._sample_rows, *parts), strict=True))
        return [results[i] for i in range(len(sequences))]

    def _sample_plain(
        self,
        native: NativeRows,
        rows: NDArray[np.float32],
        which: Rows[int],
        sequences: Rows[Sequence],
    ) -> list[SampledToken | SamplingFailure]:
        is_shared = self._threads.is_shared(rows)
        ways = [_way_of(s) for s in sequences]
        token_ids, bests = native.choose(rows, which, ways, is_shared=is_shared)
        results: list[SampledToken | SamplingFailure] = [
            SampledToken(token_id) if math.isfinite(best) else _no_numbers(best)
            for token_id, best in zip(token_ids, bests, strict=True)
        ]
        wanted = [
            i
            for i, (result, s) in enumerate(zip(results, sequences, strict=True))
            if s.params.logprobs is not None and isinstance(result, SampledToken)
        ]
        if wanted:
            ks = [sequences[i].params.logprobs or 0 for i in wanted]
            ids = [token_ids[i] for i in wanted]
            some = [which[i] for i in wanted]
            found = native.score(rows, some, ids, ks, is_shared=is_shared)
            for i, scored in zip(wanted, found, strict=True):
                assert scored is not None, "a row that gave a token has a finite best score"
                results[i] = SampledToken(token_ids[i], scored.logprobs)
        return results

    def _sample_rows(
        self, rows: Rows[Row], sequences: Rows[Sequence]
    ) -> list[SampledToken | SamplingFailure]:
        # One row after the other, so that whatever it needs finds the row in the core's cache.
        return [self._sample_row(row, s) for row, s in zip(rows, sequences, strict=True)]

    def _sample_row(self, row: Row, sequence: Sequence) -> SampledToken | SamplingFailure:
        best_id = self._passes.best(row)
        # NaN counts as the largest for argmax, so the best value tells about all of them.
        if not math.isfinite(row[best_id]):
            return _no_numbers(row[best_id])
        try:
            token_id = self._choose(row, best_id, sequence)
        except RequestError as error:  # of its constraint
            return SamplingFailure(str(error), is_refusal=True)
        if token_id is None:
            return SamplingFailure(
                "the sampling parameters leave no token with a finite score; check "
                "constraint, allowed_token_ids, banned_token_ids, min_new_tokens and "
                "repetition_penalty",
                is_refusal=True,
            )
        if sequence.params.logprobs is None:
            return SampledToken(token_id)
        k = sequence.params.logprobs
        return SampledToken(token_id, self._passes.logprobs(row, token_id, k))

    def _choose(self, row: Row, best_id: int, sequence: Sequence) -> int | None:
        if self._editor.changes(sequence):
            edited = workspace.floats(2, len(row))
            np.copyto(edited, row)
            row = edited
            self._editor.apply(row, sequence)
            best_id = self._passes.best(row)
            if not np.isfinite(row[best_id]):
                return None
        way = _way_of(sequence)
        return best_id if way is None else self._passes.draw(row, *way, best_id)


def _way_of(sequence: Sequence) -> Filtered | None:
    """How a sequence's next row is drawn from; None when it is greedy."""
    params = sequence.params
    if params.is_greedy:
        return None
    assert params.seed is not None, "a sampled sequence needs a seed, see seeds.with_seed"
    return params, partial(uniform, params.seed, sequence.num_output_tokens)


def _no_numbers(largest: float) -> SamplingFailure:
    return SamplingFailure(f"the model's logits hold {largest} as their largest value")


def _score_natively(
    native: NativeRows, logits: NDArray[np.float32], rows: Rows[RowPlan], is_shared: bool
) -> list[ScoredToken | SamplingFailure]:
    token_ids = [plan.sequence.token_ids[plan.start + 1] for plan in rows]
    ks = [_num_listed(plan) for plan in rows]
    found = native.score(logits, range(len(rows)), token_ids, ks, is_shared=is_shared)
    return [
        _no_numbers(float(row.max())) if scored is None else scored
        for row, scored in zip(logits, found, strict=True)
    ]


def _num_listed(plan: RowPlan) -> int:
    k = plan.sequence.params.prompt_logprobs
    assert k is not None, f"{plan.sequence.request_id} is scored unasked"
    return k


def _score_rows(logits: Rows[Row], rows: Rows[RowPlan]) -> list[ScoredToken | SamplingFailure]:
    return [_score_row(row, plan) for row, plan in zip(logits, rows, strict=True)]


def _score_row(row: Row, plan: RowPlan) -> ScoredToken | SamplingFailure:
    largest = row.max()
    if not math.isfinite(largest):
        return _no_numbers(float(largest))
    token_id = plan.sequence.token_ids[plan.start + 1]
    better = np.greater(row, row[token_id], out=workspace.flags(len(row)))
    rank = 1 + int(np.count_nonzero(better))
    return ScoredToken(token_logprobs(row, token_id, _num_listed(plan)), rank)
