"""The parity gate: the exported graph in ONNX Runtime against the checkpoint in transformers.

Teacher-forced: the first part of one sequence goes through the graph in chunks, then one step of
each decode bucket and chunk shape over a cache as long as the buckets allow, with contexts on
both sides of every bucket edge. Free:
greedy answers token by token, all prompts in one batch. The blocks are scrambled, unused ones
hold noise, and padding rows and tokens are always there.

How far off the graph may be is `tolerance.py`; what was found is `parity_report.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from export.hf_reference import GreedyRun, TeacherForced, greedy, teacher_forced
from export.paged_runner import PagedRunner, Row, StepResult, StepSession
from export.parity_cases import (
    Step,
    bucket_steps,
    chunk_ends,
    chunked_prefill,
    edge_positions,
    steps_to_prove,
)
from export.parity_report import ParityReport
from export.rounded_reference import Rounding, rounded_reference
from export.step_shape import StepShape
from export.tolerance import Tolerance, half_tolerance, single_tolerance
from export.weight_format import WeightFormat
from omruntime.buckets import BucketTable, Phase
from omruntime.errors import ParityError

NUM_GREEDY_TOKENS = 64
# Long enough for two of the longest chunks, a short one and a single token.
NUM_CHUNKED_TOKENS = 640
_HALF_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class ParityInput:
    """What to compare over.

    Attributes:
        token_ids: The teacher-forced sequence, as long as the buckets allow.
        prompts: Prompts of the greedy answers, none empty.
        weights: The format that the graph keeps its matrices in; None for its own type.
    """

    shape: StepShape
    table: BucketTable
    token_ids: tuple[int, ...]
    prompts: tuple[tuple[int, ...], ...]
    weights: WeightFormat | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """What the checkpoint itself gives.

    Attributes:
        answers: Its greedy answer to each prompt.
    """

    forced: TeacherForced
    answers: tuple[GreedyRun, ...]


def run_reference(
    model: PreTrainedModel,
    given: ParityInput,
    watching: AbstractContextManager[None] | None = None,
) -> Reference:
    """Run the checkpoint over the parity sequence and the prompts, in float32.

    Args:
        watching: Entered around the run over the sequence.
    """
    with watching or nullcontext():
        forced = teacher_forced(model, given.token_ids, _kept_positions(given))
    answers = (greedy(model, prompt, _answer_length(prompt, given)) for prompt in given.prompts)
    return Reference(forced, tuple(answers))


def tolerance_for(
    model: PreTrainedModel, given: ParityInput, reference: Reference, allows_overflow: bool
) -> Tolerance:
    """How far off a graph of this checkpoint may be, in the dtype of the graph.

    In 16 bits the model's weights stay rounded, so nothing may need them after.

    Raises:
        ExportError: The checkpoint's own logits are not finite, or float16 does not hold it.
    """
    dtype = given.shape.dtype
    if dtype == "float32":
        return single_tolerance(reference.forced)
    positions = _kept_positions(given)
    rounding = Rounding(_HALF_TYPES[dtype], given.weights)
    rounded = rounded_reference(model, given.token_ids, positions, rounding)
    return half_tolerance(reference.forced, rounded, dtype, allows_overflow=allows_overflow)


def check_parity(
    session: StepSession,
    given: ParityInput,
    reference: Reference,
    tolerance: Tolerance,
    progress: Callable[[str], None],
) -> ParityReport:
    """Compare everything.

    Raises:
        ParityError: A difference beyond the tolerance; the message names the step and the first
            layer whose keys or values differ.
    """
    report = ParityReport(given.shape.dtype, tolerance)
    forced, block_size = reference.forced, given.shape.block_size
    buckets = tuple(given.table)
    progress("comparing chunked prefill")
    runner = PagedRunner(session, given.shape, [len(given.token_ids)])
    chunked = given.token_ids[:NUM_CHUNKED_TOKENS]
    for step in chunked_prefill(chunked, given.table):
        _compare_step(step, runner.run(step.bucket, step.rows, append=True), forced, report)
    # The rest of the cache is the checkpoint's own; running it as well would only cost time.
    rest = Row(0, given.token_ids[len(chunked) :], len(chunked))
    runner.fill(rest, forced.kv[:, :, :, len(chunked) :])
    proved = steps_to_prove(buckets)
    progress(f"comparing one step of each of {len(proved)} buckets")
    edges = edge_positions(buckets, block_size, len(given.token_ids))
    for step in bucket_steps(given.token_ids, edges, proved, block_size):
        _compare_step(step, runner.run(step.bucket, step.rows, append=False), forced, report)
    report.require_mean()
    del runner
    progress("comparing greedy answers")
    _compare_answers(session, given, reference.answers, report)
    return report


def _kept_positions(given: ParityInput) -> list[int]:
    """Positions whose logits are compared."""
    block_size, length = given.shape.block_size, len(given.token_ids)
    edges = edge_positions(tuple(given.table), block_size, length)
    return edges + chunk_ends(given.token_ids[:NUM_CHUNKED_TOKENS], given.table)


def _compare_step(
    step: Step, result: StepResult, reference: TeacherForced, report: ParityReport
) -> None:
    """Hold one step against the reference and note it."""
    limits = report.limits
    worst = 0.0
    for row, logits, new_kv in zip(step.rows, result.logits, result.new_kv, strict=True):
        end = row.past_len + len(row.token_ids)
        wanted_kv = reference.kv[:, :, :, row.past_len : end]
        wanted = reference.logits[end - 1]
        if limits.allows_overflow and not (np.isfinite(logits).all() and np.isfinite(new_kv).all()):
            report.num_overflowed_rows += 1
            continue
        diff = float(np.abs(logits - wanted).max())
        # Written so that a NaN fails.
        if not diff <= limits.logits:
            raise ParityError(
                f"logits differ by {diff:.3g} at position {end - 1}, tolerance "
                f"{limits.logits:.3g}, in {_step_name(step)}; "
                f"{_first_difference(new_kv, wanted_kv, limits.kv)}"
            )
        if _differing_layer(new_kv, wanted_kv, limits.kv) is not None:
            raise ParityError(
                f"keys or values differ at positions {row.past_len} to {end - 1} in "
                f"{_step_name(step)}; {_first_difference(new_kv, wanted_kv, limits.kv)}"
            )
        report.add_row(logits, wanted, float(np.abs(new_kv - wanted_kv).max()))
        worst = max(worst, diff)
    report.cases.append(f"{_step_name(step)}: logits within {worst:.2e}")


def _compare_answers(
    session: StepSession,
    given: ParityInput,
    answers: Sequence[GreedyRun],
    report: ParityReport,
) -> None:
    """Continue every prompt on the graph's own tokens, all rows in one batch where they fit."""
    most = given.table.max_batch(Phase.DECODE)
    lengths = [len(p) + len(a.token_ids) for p, a in zip(given.prompts, answers, strict=True)]
    runner = PagedRunner(session, given.shape, lengths)
    got = [[_prefill(runner, given, i)] for i in range(len(answers))]
    live = list(range(len(answers)))
    while live:
        live = [i for i in live if _still_equal(i, got[i], answers[i], report)]
        for start in range(0, len(live), most):
            part = live[start : start + most]
            rows = [Row(i, (got[i][-1],), len(given.prompts[i]) + len(got[i]) - 1) for i in part]
            for i, row in zip(part, _decode(runner, given.table, rows), strict=True):
                got[i].append(row)


def _still_equal(index: int, got: list[int], answer: GreedyRun, report: ParityReport) -> bool:
    """Whether an answer goes on: equal so far and not at its end."""
    step = len(got) - 1
    if got[step] != answer.token_ids[step]:
        wanted, row = answer.token_ids[step], answer.logits[step]
        lead = float(row[wanted] - row[got[step]])
        if lead >= report.limits.near_tie and not _has_overflowed(report):
            raise ParityError(
                f"greedy answer {index} differs at token {step}: got {got[step]}, wanted "
                f"{wanted}, whose logit leads by {lead:.3g}"
            )
        report.num_near_ties += 1
    elif len(got) < len(answer.token_ids):
        return True
    report.num_greedy_tokens += len(got)
    report.cases.append(f"greedy answer {index}: {len(got)} tokens")
    return False


def _prefill(runner: PagedRunner, given: ParityInput, index: int) -> int:
    """Run a prompt and return the first token of its answer."""
    token = -1
    for step in chunked_prefill(given.prompts[index], given.table):
        rows = tuple(Row(index, row.token_ids, row.past_len) for row in step.rows)
        token = int(runner.run(step.bucket, rows, append=True).logits[0].argmax())
    return token


def _decode(runner: PagedRunner, table: BucketTable, rows: Sequence[Row]) -> list[int]:
    blocks = max(-(-row.past_len // table.block_size) for row in rows)
    bucket = table.pick(Phase.DECODE, len(rows), 1, max(1, blocks))
    assert bucket is not None, "the table covers every decode step"
    return [int(row.argmax()) for row in runner.run(bucket, rows, append=True).logits]


def _answer_length(prompt: Sequence[int], given: ParityInput) -> int:
    return min(NUM_GREEDY_TOKENS, len(given.token_ids) - len(prompt))


def _has_overflowed(report: ParityReport) -> bool:
    return report.limits.allows_overflow and report.num_overflowed_rows > 0


def _differing_layer(got: np.ndarray, wanted: np.ndarray, limits: Sequence[float]) -> int | None:
    """The first layer whose keys or values differ; arrays [layers, 2, heads, tokens, dim]."""
    for layer, limit in enumerate(limits):
        if not float(np.abs(got[layer] - wanted[layer]).max()) <= limit:
            return layer
    return None


def _first_difference(got: np.ndarray, wanted: np.ndarray, limits: Sequence[float]) -> str:
    layer = _differing_layer(got, wanted, limits)
    if layer is None:
        return "all layers' keys and values agree, so the last layer or the output head differs"
    limit = limits[layer : layer + 1]
    keys_differ = _differing_layer(got[layer:, :1], wanted[layer:, :1], limit) is not None
    return f"the first diverging layer is {layer}, in its {'keys' if keys_differ else 'values'}"


def _step_name(step: Step) -> str:
    bucket = step.bucket
    return (
        f"{bucket.phase.value} bucket batch {bucket.batch}, tokens {bucket.tokens}, past_blocks "
        f"{bucket.past_blocks} with {len(step.rows)} row(s), the first over "
        f"{step.rows[0].past_len} + {len(step.rows[0].token_ids)} positions"
    )
