"""The parity gate: the exported graph in ONNX Runtime against the checkpoint in transformers.

Teacher-forced: the first part of one sequence goes through the graph in chunks, then one step of
each decode bucket and chunk shape over a cache as long as the buckets allow, with contexts on
both sides of every bucket edge. Free:
greedy answers token by token, all prompts in one batch. The blocks are scrambled, unused ones
hold noise, and padding rows and tokens are always there.

The tolerance follows the size of the checkpoint's own logits, as rounding does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnxruntime
from transformers import PreTrainedModel

from export.hf_reference import GreedyRun, TeacherForced, greedy, teacher_forced
from export.paged_runner import PagedRunner, Row, StepResult
from export.parity_cases import (
    Step,
    bucket_steps,
    chunk_ends,
    chunked_prefill,
    edge_positions,
    steps_to_prove,
)
from export.step_shape import StepShape
from omruntime.buckets import BucketTable, Phase
from omruntime.errors import ExportError, ParityError
from omruntime.manifest import ParitySummary

NUM_GREEDY_TOKENS = 64
# Long enough for two of the longest chunks, a short one and a single token.
NUM_CHUNKED_TOKENS = 640
# Rounding of float32 over some tens of layers reaches 2e-6 of the largest logit; an error in
# a mask, a position or a head reaches tens of percent.
RELATIVE_TOLERANCE = 2.5e-5
LEAST_TOLERANCE = 2e-5
# Two logits this close may change places by rounding alone.
NEAR_TIE = 1e-4
# Of a layer's largest key or value.
_KV_RELATIVE_TOLERANCE = 2e-4


@dataclass(slots=True)
class ParityReport:
    """What was compared, and the largest difference found; plain data for reports/.

    Attributes:
        cases: One line for each step or answer: what ran and how far off it was.
    """

    tolerance: float = 0.0
    max_abs_logit: float = 0.0
    max_abs_logits_diff: float = 0.0
    max_abs_kv_diff: float = 0.0
    num_greedy_tokens: int = 0
    num_near_ties: int = 0
    cases: list[str] = field(default_factory=list)

    def summary(self) -> ParitySummary:
        """The part that goes into the manifest."""
        return ParitySummary(
            max_abs_logits_diff=self.max_abs_logits_diff,
            tolerance=self.tolerance,
            num_greedy_tokens=self.num_greedy_tokens,
            num_near_ties=self.num_near_ties,
            num_cases=len(self.cases),
        )


@dataclass(frozen=True, slots=True)
class ParityInput:
    """What to compare over.

    Attributes:
        token_ids: The teacher-forced sequence, as long as the buckets allow.
        prompts: Prompts of the greedy answers, none empty.
    """

    shape: StepShape
    table: BucketTable
    token_ids: tuple[int, ...]
    prompts: tuple[tuple[int, ...], ...]


def check_parity(
    model: PreTrainedModel,
    session: onnxruntime.InferenceSession,
    given: ParityInput,
    progress: Callable[[str], None],
) -> tuple[ParityReport, tuple[GreedyRun, ...]]:
    """Compare everything.

    Returns:
        The report, and the checkpoint's greedy answer to each prompt.

    Raises:
        ExportError: The checkpoint's own logits are not finite.
        ParityError: A difference beyond the tolerance; the message names the step and the first
            layer whose keys or values differ.
    """
    report = ParityReport()
    progress("running the checkpoint over the parity sequence")
    buckets = tuple(given.table)
    edges = edge_positions(buckets, given.shape.block_size, len(given.token_ids))
    chunked = given.token_ids[:NUM_CHUNKED_TOKENS]
    kept = edges + chunk_ends(chunked, given.table)
    reference = teacher_forced(model, given.token_ids, kept)
    largest = _largest_logit(reference)
    report.max_abs_logit = largest
    report.tolerance = max(LEAST_TOLERANCE, RELATIVE_TOLERANCE * largest)

    progress("comparing chunked prefill")
    runner = PagedRunner(session, given.shape, [len(given.token_ids)])
    for step in chunked_prefill(chunked, given.table):
        _compare_step(step, runner.run(step.bucket, step.rows, append=True), reference, report)
    # The rest of the cache is the checkpoint's own; running it as well would only cost time.
    rest = Row(0, given.token_ids[len(chunked) :], len(chunked))
    runner.fill(rest, reference.kv[:, :, :, len(chunked) :])
    proved = steps_to_prove(buckets)
    progress(f"comparing one step of each of {len(proved)} buckets")
    for step in bucket_steps(given.token_ids, edges, proved, given.shape.block_size):
        _compare_step(step, runner.run(step.bucket, step.rows, append=False), reference, report)
    del runner

    progress("comparing greedy answers")
    answers = tuple(
        greedy(model, prompt, _answer_length(prompt, given)) for prompt in given.prompts
    )
    _compare_answers(session, given, answers, report)
    return report, answers


def _largest_logit(reference: TeacherForced) -> float:
    for position, row in reference.logits.items():
        if not np.isfinite(row).all():
            raise ExportError(
                f"the checkpoint itself gives NaN or infinity: transformers' logits at position "
                f"{position} hold it, so nothing can be compared; its config or weights are wrong"
            )
    return max(float(np.abs(row).max()) for row in reference.logits.values())


def _compare_step(
    step: Step, result: StepResult, reference: TeacherForced, report: ParityReport
) -> None:
    """Hold one step against the reference and note it."""
    worst = 0.0
    for row, logits, new_kv in zip(step.rows, result.logits, result.new_kv, strict=True):
        end = row.past_len + len(row.token_ids)
        wanted_kv = reference.kv[:, :, :, row.past_len : end]
        diff = float(np.abs(logits - reference.logits[end - 1]).max())
        # Written so that a NaN fails.
        if not diff <= report.tolerance:
            raise ParityError(
                f"logits differ by {diff:.3g} at position {end - 1}, tolerance "
                f"{report.tolerance:.3g}, in {_step_name(step)}; "
                f"{_first_difference(new_kv, wanted_kv)}"
            )
        worst = max(worst, diff)
        report.max_abs_kv_diff = max(
            report.max_abs_kv_diff, float(np.abs(new_kv - wanted_kv).max())
        )
        difference = _differing_layer(new_kv, wanted_kv)
        if difference is not None:
            raise ParityError(
                f"keys or values differ at positions {row.past_len} to {end - 1} in "
                f"{_step_name(step)}; {_first_difference(new_kv, wanted_kv)}"
            )
    report.max_abs_logits_diff = max(report.max_abs_logits_diff, worst)
    report.cases.append(f"{_step_name(step)}: logits within {worst:.2e}")


def _compare_answers(
    session: onnxruntime.InferenceSession,
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
        first, second = np.sort(answer.logits[step])[-1:-3:-1]
        if first - second >= NEAR_TIE:
            raise ParityError(
                f"greedy answer {index} differs at token {step}: got {got[step]}, wanted "
                f"{answer.token_ids[step]}, whose logit leads by {first - second:.3g}"
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


def _differing_layer(got: np.ndarray, wanted: np.ndarray) -> int | None:
    """The first layer whose keys or values differ; arrays [layers, 2, heads, tokens, dim]."""
    for layer in range(len(wanted)):
        scale = max(1e-3, float(np.abs(wanted[layer]).max()))
        if not float(np.abs(got[layer] - wanted[layer]).max()) <= _KV_RELATIVE_TOLERANCE * scale:
            return layer
    return None


def _first_difference(got: np.ndarray, wanted: np.ndarray) -> str:
    layer = _differing_layer(got, wanted)
    if layer is None:
        return "all layers' keys and values agree, so the last layer or the output head differs"
    part = "keys" if _differing_layer(got[layer:, :1], wanted[layer:, :1]) == 0 else "values"
    return f"the first diverging layer is {layer}, in its {part}"


def _step_name(step: Step) -> str:
    bucket = step.bucket
    return (
        f"{bucket.phase.value} bucket batch {bucket.batch}, tokens {bucket.tokens}, past_blocks "
        f"{bucket.past_blocks} with {len(step.rows)} row(s), the first over "
        f"{step.rows[0].past_len} + {len(step.rows[0].token_ids)} positions"
    )
