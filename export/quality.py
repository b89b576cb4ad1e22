"""The quality gate: what a weight format costs a checkpoint, in its own words.

The checkpoint in float32 and the graph as it is served predict the next token over the same text,
teacher-forced. Owns the measures and their limits; the text is `quality_text.py`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from export.paged_runner import PagedRunner, Row, StepSession
from export.parity_report import log_softmax
from export.quality_text import QualityText
from export.step_shape import StepShape
from export.weight_format import WeightFormat
from omruntime.buckets import BucketTable, Phase
from omruntime.errors import QualityError

QUALITY_REPORT_PATH = "reports/quality.json"
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class QualityLimits:
    """What a format may cost; the checkpoint in float32 is the measure.

    Attributes:
        perplexity_ratio: Most, of the format's perplexity over float32's.
        clear_top1_agreement: Least share of positions with the same likeliest token, of those
            where float32's first leads its second clearly.
        mean_kl: Most, mean divergence from float32's distribution, in nats.
    """

    perplexity_ratio: float
    clear_top1_agreement: float
    mean_kl: float


# Nats between two tokens that rounding alone may not change; a closer pair is a tie.
_CLEAR_LEAD = 0.1
LIMITS = {
    WeightFormat.BFLOAT16: QualityLimits(1.01, 0.98, 0.005),
    WeightFormat.INT8: QualityLimits(1.02, 0.97, 0.02),
}


@dataclass(frozen=True, slots=True)
class Quality:
    """What was measured.

    Attributes:
        top1_agreement: Over all positions, ties included.
    """

    num_positions: int
    perplexity_float32: float
    perplexity: float
    top1_agreement: float
    clear_top1_agreement: float
    mean_kl: float
    max_kl: float

    @property
    def perplexity_ratio(self) -> float:
        """Above 1: worse than float32."""
        return self.perplexity / self.perplexity_float32


@dataclass(frozen=True, slots=True)
class QualityReference:
    """What the checkpoint says over the text.

    Attributes:
        logits: float32 [rows, scored, vocabulary], in a file without a name.
    """

    text: QualityText
    logits: Floats


def run_quality_reference(model: PreTrainedModel, text: QualityText) -> QualityReference:
    """Run the checkpoint in float32 over every row."""
    num_rows, num_scored = len(text.token_ids), text.num_scored
    kept = torch.arange(text.num_context, text.num_context + num_scored)
    logits: Floats | None = None
    for i, row in enumerate(text.token_ids):
        with torch.no_grad():
            got = model(
                input_ids=torch.from_numpy(row[None, :-1]), use_cache=False, logits_to_keep=kept
            ).logits[0]
        if logits is None:
            logits = _unnamed_array((num_rows, num_scored, got.shape[-1]))
        logits[i] = got.float().numpy()
    assert logits is not None, "a text has at least one row"
    return QualityReference(text, logits)


def measure_quality(
    session: StepSession, shape: StepShape, table: BucketTable, reference: QualityReference
) -> Quality:
    """Run the graph over the text: the context as prompts, the rest one token a step."""
    sums = _Sums()
    for step, rows, logits in _predictions(session, shape, table, reference.text):
        position = reference.text.num_context + step
        for row, got in zip(rows, logits, strict=True):
            wanted = reference.logits[row, step]
            sums.add(wanted, got, int(reference.text.token_ids[row, position + 1]))
    return sums.quality()


def require_quality(quality: Quality, weights: WeightFormat) -> None:
    """Hold a measurement against the format's limits.

    Raises:
        QualityError: The format costs this checkpoint too much; the message has the figures.
    """
    limits = LIMITS[weights]
    # Written so that a NaN fails.
    holds = (
        quality.perplexity_ratio <= limits.perplexity_ratio
        and quality.clear_top1_agreement >= limits.clear_top1_agreement
        and quality.mean_kl <= limits.mean_kl
    )
    if not holds:
        raise QualityError(
            f"weights in {weights.value} cost this checkpoint too much: perplexity "
            f"{quality.perplexity:.4g} against {quality.perplexity_float32:.4g} in float32 (ratio "
            f"{quality.perplexity_ratio:.4f}, at most {limits.perplexity_ratio}), clearly "
            f"likeliest token equal at {quality.clear_top1_agreement:.1%} (at least "
            f"{limits.clear_top1_agreement:.0%}), mean KL {quality.mean_kl:.4f} (at most "
            f"{limits.mean_kl}); build it with another --weights"
        )


def write_quality_report(
    out_dir: Path, weights: WeightFormat, quality: Quality, source: str
) -> None:
    """Write reports/quality.json below the output folder."""
    plain = {
        "weights": weights.value,
        "text": source,
        "limits": asdict(LIMITS[weights]),
        "perplexity_ratio": quality.perplexity_ratio,
        **asdict(quality),
    }
    path = out_dir / QUALITY_REPORT_PATH
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(plain, indent=2, sort_keys=True) + "\n")


def _predictions(
    session: StepSession, shape: StepShape, table: BucketTable, text: QualityText
) -> Iterator[tuple[int, list[int], Floats]]:
    """Step, row numbers and their logits, for every scored position."""
    num_rows, length = text.token_ids.shape
    runner = PagedRunner(session, shape, [length] * num_rows)
    for row in range(num_rows):
        _fill_context(runner, table, row, text)
    most = table.max_batch(Phase.DECODE)
    for step in range(text.num_scored):
        past = text.num_context + step
        bucket_blocks = -(-past // shape.block_size)
        for start in range(0, num_rows, most):
            rows = list(range(start, min(start + most, num_rows)))
            bucket = table.pick(Phase.DECODE, len(rows), 1, bucket_blocks)
            assert bucket is not None, "the table covers every decode step"
            new = [Row(row, (int(text.token_ids[row, past]),), past) for row in rows]
            yield step, rows, runner.run(bucket, new, append=True).logits


def _fill_context(runner: PagedRunner, table: BucketTable, row: int, text: QualityText) -> None:
    past, block_size = 0, table.block_size
    while past < text.num_context:
        blocks = max(1, -(-past // block_size))
        length = min(text.num_context - past, table.max_tokens(blocks))
        chunk = tuple(text.token_ids[row, past : past + length].tolist())
        bucket = table.pick(Phase.PREFILL, 1, length, blocks)
        assert bucket is not None, "the table covers every prefill chunk"
        runner.run(bucket, [Row(row, chunk, past)], append=True)
        past += length


class _Sums:
    """Sums over positions."""

    def __init__(self) -> None:
        self._count = 0
        self._equal = 0
        self._clear = 0
        self._clear_equal = 0
        self._wanted_loss = 0.0
        self._got_loss = 0.0
        self._kl = 0.0
        self._max_kl = 0.0

    def add(self, wanted: Floats, got: Floats, next_token: int) -> None:
        """One position's logits, [vocabulary] each, and the token that follows in the text."""
        log_wanted, log_got = log_softmax(wanted), log_softmax(got)
        divergence = float((np.exp(log_wanted) * (log_wanted - log_got)).sum())
        self._count += 1
        second, first = np.argpartition(wanted, (-2, -1))[-2:]
        is_equal = bool(got.argmax() == first)
        self._equal += is_equal
        if log_wanted[first] - log_wanted[second] >= _CLEAR_LEAD:
            self._clear += 1
            self._clear_equal += is_equal
        self._wanted_loss -= float(log_wanted[next_token])
        self._got_loss -= float(log_got[next_token])
        self._kl += divergence
        self._max_kl = max(self._max_kl, divergence)

    def quality(self) -> Quality:
        return Quality(
            num_positions=self._count,
            perplexity_float32=float(np.exp(self._wanted_loss / self._count)),
            perplexity=float(np.exp(self._got_loss / self._count)),
            top1_agreement=self._equal / self._count,
            clear_top1_agreement=self._clear_equal / self._clear if self._clear else 1.0,
            mean_kl=self._kl / self._count,
            max_kl=self._max_kl,
        )


def _unnamed_array(shape: tuple[int, ...]) -> Floats:
    """An array in a temporary file: it may be larger than the model's weights."""
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.float32, mode="w+", shape=shape)
