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

    The order: logit_bias, constraint, allowed_token_ids, banned_token_ids, min_new_tokens (bans end
    and stop tokens), repetition_penalty (prompt and answer), presence_penalty and
    frequency_penalty (answer).
    """

    def __init__(self, eos_token_ids: Iterable[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._histories = TokenHistories()

    def changes(self, sequence: Sequence) -> bool:
        """Whether `apply` would touch the sequence's next row; asked of every row of every step."""
        params = sequence.request.params
        return bool(
            sequence.matcher is not None
            or params.logit_bias
            or params.allowed_token_ids
            or params.banned_token_ids
            or (params.min_new_tokens and sequence.num_output_tokens < params.min_new_tokens)
            or _has_penalty(params)
        )

    def apply(self, row: Row, sequence: Sequence) -> None:
        """Edit a row, float32 [vocab_size], in place; an id that is banned gets -inf.

        A repetition penalty near 0 can raise a score to +inf, which the caller must check.

        Raises:
            RequestError: The sequence's constraint cannot be followed further.
        """
        params = sequence.params
        if params.logit_bias:
            count = len(params.logit_bias)
            token_ids = np.fromiter(params.logit_bias.keys(), np.int64, count)
            row[token_ids] += np.fromiter(params.logit_bias.values(), np.float32, count)
        self._ban(row, sequence)
        if _has_penalty(params):
            history = self._histories.of(sequence)
            with np.errstate(over="ignore"):
                _penalise_repetition(row, history.all_tokens.ids, params)
            _penalise_output(row, history.output_tokens, params)

    def drop_finished(self) -> None:
        """Forget what is kept about finished sequences."""
        self._histories.drop_finished()

    def forget_all(self) -> None:
        """Forget what is kept about all sequences; it is made anew when it is asked for."""
        self._histories = TokenHistories()

    def _ban(self, row: Row, sequence: Sequence) -> None:
        params = sequence.params
        if sequence.matcher is not None:
            np.copyto(row, -np.inf, where=~sequence.matcher.allowed())
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
    """Distinct tokens of sequences and their counts, as arrays that grow with the sequences.

    To collect them anew from some thousand ids takes 0.1 ms and more, too long for every row of
    every step. The sequence stays the only source: what was dropped is built again from it.
    """

    def __init__(self) -> None:
        self._histories: dict[Sequence, _History] = {}

    def of(self, sequence: Sequence) -> _History:
        """The history up to the sequence's last token."""
        history = self._histories.get(sequence)
        if history is None:
            history = self._histories[sequence] = _History()
        history.extend(sequence)
        return history

    def drop_finished(self) -> None:
        """Forget finished sequences."""
        finished = [s for s in self._histories if s.status is SequenceStatus.FINISHED]
        for sequence in finished:
            del self._histories[sequence]

    def __len__(self) -> int:
        return len(self._histories)


class _History:
    """What is known of one sequence: ids that occur at all, and how often each in the answer."""

    def __init__(self) -> None:
        self.all_tokens = _TokenCounts()
        self.output_tokens = _TokenCounts()
        self._length = 0

    def extend(self, sequence: Sequence) -> None:
        """Count the tokens that are new since the last call."""
        num_prompt = sequence.num_prompt_tokens
        for position in range(self._length, len(sequence.token_ids)):
            token_id = sequence.token_ids[position]
            self.all_tokens.add(token_id)
            if position >= num_prompt:
                self.output_tokens.add(token_id)
        self._length = len(sequence.token_ids)


class _TokenCounts:
    """Distinct ids in order of first sight, with counts; both as arrays with room to grow."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._ids: TokenIds = np.empty(64, np.int64)
        self._counts: TokenIds = np.zeros(64, np.int64)

    @property
    def ids(self) -> TokenIds:
        """A view that the next `add` may change."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> TokenIds:
        """Of the same order as `ids`; a view."""
        return self._counts[: len(self._places)]

    def add(self, token_id: int) -> None:
        """Count one token."""
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token_id
        self._counts[place] += 1


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
    scores = row[token_ids]
    factor = np.float32(min(max(penalty, 1 / _MAX_PENALTY), _MAX_PENALTY))
    row[token_ids] = np.where(scores > 0, scores / factor, scores * factor)


def _penalise_output(row: Row, tokens: _TokenCounts, params: SamplingParams) -> None:
    presence, frequency = params.presence_penalty, params.frequency_penalty
    if presence != 0.0 or frequency != 0.0:
        row[tokens.ids] -= (presence + frequency * tokens.counts).astype(np.float32)
