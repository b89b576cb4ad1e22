"""What a request's parameters do to a row of logits before the draw.

Owns bias, bans and penalties, and the token arrays that the penalties read. Temperature, top_k,
top_p, min_p and the draw itself are `draw.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from omruntime.sampling_params import SamplingParams
from omruntime.sequence import Sequence, SequenceStatus

Row = NDArray[np.float32]
TokenIds = NDArray[np.int64]

# Beyond this a penalty decides alone anyway, and float32 would turn it into 0 or infinity.
_MAX_PENALTY = 1e30


class LogitsEditor:
    """Applies bias, bans and penalties.

    The order: logit_bias, allowed_token_ids, banned_token_ids, min_new_tokens (bans end
    and stop tokens), repetition_penalty (prompt and answer), presence_penalty and
    frequency_penalty (answer).
    """

    def __init__(self, eos_token_ids: Iterable[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._histories = TokenHistories()

    def changes(self, sequence: Sequence) -> bool:
        """Whether `apply` would touch the sequence's next row."""
        params = sequence.params
        return bool(
            params.logit_bias
            or params.allowed_token_ids
            or params.banned_token_ids
            or sequence.num_output_tokens < params.min_new_tokens
            or _has_penalty(params)
        )

    def apply(self, row: Row, sequence: Sequence) -> None:
        """Edit a row, float32 [vocab_size], in place; an id that is banned gets -inf.

        A repetition penalty near 0 can raise a score to +inf, which the caller must check.
        """
        params = sequence.params
        if params.logit_bias:
            count = len(params.logit_bias)
            token_ids = np.fromiter(params.logit_bias.keys(), np.int64, count)
            row[token_ids] += np.fromiter(params.logit_bias.values(), np.float32, count)
        self._ban(row, sequence)
        if _has_penalty(params):
            history = self._histories.token_ids(sequence)
            with np.errstate(over="ignore"):
                _penalise_repetition(row, history, params)
            _penalise_output(row, history[sequence.num_prompt_tokens :], params)

    def drop_finished(self) -> None:
        """Forget what is kept about finished sequences."""
        self._histories.drop_finished()

    def forget_all(self) -> None:
        """Forget what is kept about all sequences; it is made anew when it is asked for."""
        self._histories = TokenHistories()

    def _ban(self, row: Row, sequence: Sequence) -> None:
        params = sequence.params
        if params.allowed_token_ids:
            allowed = np.array(params.allowed_token_ids, np.int64)
            scores = row[allowed]
            row.fill(-np.inf)
            row[allowed] = scores
        if params.banned_token_ids:
            row[np.array(params.banned_token_ids, np.int64)] = -np.inf
        if sequence.num_output_tokens < params.min_new_tokens:
            ends = self._eos_token_ids + params.stop_token_ids
            row[np.array(ends, np.int64)] = -np.inf


class TokenHistories:
    """Token ids of sequences as arrays that grow with them.

    A list of some thousand ids takes 0.1 ms to convert, too long for every row of every step.
    The sequence stays the only source: an array that was dropped is built again from it.
    """

    def __init__(self) -> None:
        self._histories: dict[Sequence, _History] = {}

    def token_ids(self, sequence: Sequence) -> TokenIds:
        """Prompt and answer of a sequence; a view that the next call may change."""
        history = self._histories.get(sequence)
        if history is None:
            history = self._histories[sequence] = _History()
        return history.extended_to(sequence.token_ids)

    def drop_finished(self) -> None:
        """Forget finished sequences."""
        finished = [s for s in self._histories if s.status is SequenceStatus.FINISHED]
        for sequence in finished:
            del self._histories[sequence]

    def __len__(self) -> int:
        return len(self._histories)


class _History:
    """The known first part of an append-only list as an array with room to grow."""

    def __init__(self) -> None:
        self._ids = np.empty(0, np.int64)
        self._length = 0

    def extended_to(self, token_ids: list[int]) -> TokenIds:
        length = len(token_ids)
        if length > len(self._ids):
            grown = np.empty(max(64, 2 * length), np.int64)
            grown[: self._length] = self._ids[: self._length]
            self._ids = grown
        self._ids[self._length : length] = token_ids[self._length :]
        self._length = length
        return self._ids[:length]


def _has_penalty(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty not in (None, 1.0)
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


def _penalise_repetition(row: Row, token_ids: TokenIds, params: SamplingParams) -> None:
    penalty = params.repetition_penalty
    if penalty is None or penalty == 1.0:
        return
    # An id that occurs twice is read before either write, so it is penalised once.
    scores = row[token_ids]
    factor = np.float32(min(max(penalty, 1 / _MAX_PENALTY), _MAX_PENALTY))
    row[token_ids] = np.where(scores > 0, scores / factor, scores * factor)


def _penalise_output(row: Row, token_ids: TokenIds, params: SamplingParams) -> None:
    presence, frequency = params.presence_penalty, params.frequency_penalty
    if len(token_ids) == 0 or (presence == 0.0 and frequency == 0.0):
        return
    distinct, counts = np.unique(token_ids, return_counts=True)
    row[distinct] -= (presence + frequency * counts).astype(np.float32)
