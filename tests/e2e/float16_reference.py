"""Greedy answers of a bundle's float16 graph in ONNX Runtime, without the engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from export.kept_program import open_kept_program
from export.paged_runner import PagedRunner, Row
from export.replay import step_shape_of
from omruntime.buckets import Bucket, BucketTable, Phase
from omruntime.manifest import Manifest


@dataclass(frozen=True)
class GreedyAnswer:
    """The tokens, and for each how far the second best logit was behind."""

    token_ids: list[int]
    gaps: list[float]

    def take(self, logits: NDArray[np.floating]) -> None:
        """Add the best token of one row of logits."""
        second, first = np.sort(logits)[-2:]
        self.token_ids.append(int(np.argmax(logits)))
        self.gaps.append(float(first - second))


def float16_answers(
    bundle: Path, prompts: list[tuple[int, ...]], num_tokens: int
) -> list[GreedyAnswer]:
    """Run the graph that the bundle keeps, npu operators expanded; end tokens do not end it.

    Each prompt is prefilled alone, in chunks of the longest bucket; a last token alone is decoded.
    Answers are decoded side by side, for speed alone: in a bucket of one size a row's numbers do
    not depend on who else is in it. So a deterministic engine computes them too.
    """
    manifest = Manifest.read(bundle)
    session = open_kept_program(bundle, manifest, num_threads=2)
    table = manifest.bucket_table()
    shape = step_shape_of(manifest)
    runner = PagedRunner(session, shape, [len(prompt) + num_tokens for prompt in prompts])
    answers = [GreedyAnswer([], []) for _ in prompts]
    for sequence, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        for bucket, start in _chunks(len(prompt), table):
            row = Row(sequence, prompt[start : start + bucket.tokens], start)
            logits = runner.run(bucket, [row], append=True).logits
        answer.take(logits[0])
    for num_decoded in range(num_tokens - 1):
        past_lens = [len(prompt) + num_decoded for prompt in prompts]
        bucket = _largest(table, Phase.DECODE)
        rows = [
            Row(sequence, (answer.token_ids[-1],), past_len)
            for sequence, (answer, past_len) in enumerate(zip(answers, past_lens, strict=True))
        ]
        for answer, logits in zip(
            answers, runner.run(bucket, rows, append=True).logits, strict=True
        ):
            answer.take(logits)
    return answers


def _chunks(num_tokens: int, table: BucketTable) -> Iterator[tuple[Bucket, int]]:
    """The bucket and the first position of each chunk of a prompt."""
    longest = _largest(table, Phase.PREFILL)
    for start in range(0, num_tokens, longest.tokens):
        is_single = num_tokens - start == 1
        yield (_largest(table, Phase.DECODE) if is_single else longest), start


def _largest(table: BucketTable, phase: Phase) -> Bucket:
    return max((b for b in table if b.phase is phase), key=lambda b: (b.batch, b.tokens))
