"""Prefill or decode: whose step comes next when both wait. Scoring a prompt counts as prefill.

Owns the decision, as a pure function of a snapshot, and the account of what prefill has cost the
rows that decode. Which rows a step has is `row_choice.py`'s business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Rows
from dataclasses import dataclass

from omruntime.buckets import Phase
from omruntime.scheduling.output_lengths import OutputLengths
from omruntime.scheduling.row_choice import RowChooser, bucket_phase
from omruntime.sequence import Sequence
from omruntime.step import RowPlan


@dataclass(frozen=True, slots=True)
class Targets:
    """What callers should not wait longer for, in seconds.

    Attributes:
        ttft_s: Submit to first token; after about a second people turn to something else.
        itl_s: One token to the next; 0.1 is ten tokens a second, about twice as fast as people
            read.
    """

    ttft_s: float = 1.0
    itl_s: float = 0.1


@dataclass(frozen=True, slots=True)
class PhaseSnapshot:
    """What the choice between a prefill step and a decode step depends on.

    Attributes:
        num_decode_rows: Sequences that wait for a decode step; above 0.
        decode_s, prefill_s: Predicted time of either step.
        unlocked_rows: Decode rows that the prefill step brings; a chunk that computes a third
            of what its prompt lacks brings a third of a row.
        num_expected_tokens: Answer tokens that an unlocked row will bring.
        num_decoded_since: Answer tokens made since the last prefill step.
        debt_s: What prefill has stalled the decode rows for and decode steps not yet made up.
        itl_target_s: The strictest of the decode rows.
        ttft_slack_s: Until the most pressing prompt misses its first token's time, its own
            prefill and the decode steps between its chunks allowed for; negative when it is late.
    """

    num_decode_rows: int
    decode_s: float
    prefill_s: float
    unlocked_rows: float
    num_expected_tokens: float
    num_decoded_since: int
    debt_s: float
    itl_target_s: float
    ttft_slack_s: float


def choose_phase(now: PhaseSnapshot) -> Phase:
    """The phase of the next step, rows for both being there.

    First, decode rows are not stalled beyond their target: a prefill step waits until what
    came before is made up. So one chunk longer than the target still runs, but then decode
    gets its share. Second, a prompt that is about to be late goes first. Else a prefill step
    runs when the answer tokens that it unlocks outweigh those that it holds up. What was
    decoded in the meantime counts for the prompts, so that their turn comes in any case.
    """
    if now.debt_s > 0 and now.debt_s + now.prefill_s > now.itl_target_s:
        return Phase.DECODE
    if now.ttft_slack_s <= 0:
        return Phase.PREFILL
    gain = now.unlocked_rows * now.num_expected_tokens + now.num_decoded_since
    loss = now.num_decode_rows * now.prefill_s / now.decode_s
    return Phase.PREFILL if gain >= loss else Phase.DECODE


ChoosePhase = Callable[[PhaseSnapshot], Phase]


class PhasePolicy:
    """Takes the snapshots and keeps the account; for the engine thread alone."""

    def __init__(
        self,
        chooser: RowChooser,
        lengths: OutputLengths,
        targets: Targets,
        choose: ChoosePhase = choose_phase,
    ) -> None:
        self._chooser = chooser
        self._lengths = lengths
        self._targets = targets
        self._choose = choose
        self._debt_s = 0.0
        self._num_decoded_since = 0

    def next_phase(self, ready: Rows[Sequence], unready: Rows[Sequence], now: float) -> Phase:
        """The phase of the next step.

        Args:
            ready: Sequences that wait for a decode step.
            unready: Those that wait for a prefill step, the most pressing first; not both empty.
            now: `time.monotonic`.
        """
        if not unready:
            return Phase.DECODE
        if not ready:
            return Phase.PREFILL
        return self._choose(self._snapshot(ready, unready, now))

    def chunk_budget_s(self, ready: Rows[Sequence], unready: Rows[Sequence], now: float) -> float:
        """How long the next prefill step may take.

        What the decode rows wait at most for the next token; without limit if there are none,
        or if in chunks so short a prompt would be late: long ones take less for each token.
        """
        itl_target_s = self._itl_target_s(ready)
        if not ready or self._slack_s(itl_target_s, ready, unready, now) > 0:
            return itl_target_s
        return math.inf

    def ran(self, phase: Phase, num_rows: int, seconds: float, ready: Iterable[Sequence]) -> None:
        """Account for a step that is about to run.

        Args:
            seconds: Its predicted time.
            ready: The sequences that could decode.
        """
        if phase is Phase.PREFILL:
            self._num_decoded_since = 0
            self._debt_s = self._debt_s + seconds if any(True for _ in ready) else 0.0
            return
        self._num_decoded_since += num_rows
        if not self._debt_s:
            return
        # A step slower than the target makes up for its own time at least, so debts end.
        self._debt_s -= max(self._itl_target_s(ready) - seconds, seconds)
        self._debt_s = max(0.0, self._debt_s)

    def _snapshot(
        self, ready: Rows[Sequence], unready: Rows[Sequence], now: float
    ) -> PhaseSnapshot:
        budget_s = self.chunk_budget_s(ready, unready, now)
        rows = self._chooser.prompt_rows(unready[0], budget_s)
        return PhaseSnapshot(
            num_decode_rows=len(ready),
            decode_s=self._decode_s(ready),
            prefill_s=self._prompt_s(rows),
            unlocked_rows=_share(rows),
            num_expected_tokens=self._lengths.num_left(unready[0]),
            num_decoded_since=self._num_decoded_since,
            debt_s=self._debt_s,
            itl_target_s=self._itl_target_s(ready),
            ttft_slack_s=self._slack_s(budget_s, ready, unready, now),
        )

    def _slack_s(
        self, budget_s: float, ready: Rows[Sequence], unready: Rows[Sequence], now: float
    ) -> float:
        """Until the most pressing prompt is late if it goes on in chunks within a budget."""
        rows = self._chooser.prompt_rows(unready[0], budget_s)
        prefill_s = self._prompt_s(rows) / _share(rows)
        # What the decode rows are made up for it, see `ran`.
        decode_s = self._decode_s(ready)
        made_up_s = max(self._itl_target_s(ready) - decode_s, decode_s)
        prefill_s += prefill_s * decode_s / made_up_s
        return min(self._due_at(s) for s in unready) - now - prefill_s

    def _prompt_s(self, rows: Rows[RowPlan]) -> float:
        """The predicted time of a prompt's step."""
        return self._chooser.seconds(bucket_phase(Phase.PREFILL, rows), rows)

    def _decode_s(self, ready: Rows[Sequence]) -> float:
        return self._chooser.seconds(Phase.DECODE, self._chooser.decode_rows(ready))

    def _due_at(self, sequence: Sequence) -> float:
        """When a prompt's first token is due; one that was preempted after it has no such time."""
        if sequence.num_output_tokens > 0:
            return float("inf")
        target_s = sequence.request.scheduling.ttft_target_s or self._targets.ttft_s
        return sequence.submitted_at + target_s

    def _itl_target_s(self, ready: Iterable[Sequence]) -> float:
        wished = (s.request.scheduling.itl_target_s or self._targets.itl_s for s in ready)
        return min(wished, default=float("inf"))


def _share(rows: Rows[RowPlan]) -> float:
    """How much of what a prompt lacks, tokens to compute and positions to score, rows bring."""
    sequence = rows[0].sequence
    num_left = sequence.num_pending_tokens + sequence.num_unscored
    return sum(row.num_tokens for row in rows) / num_left
