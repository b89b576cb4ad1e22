"""Greedy answers of a bundle's float16 graph in ONNX Runtime, one sequence at a time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from export.kept_program import open_kept_program
from export.paged_runner import PagedRunner, Row
from export.parity_cases import chunked_prefill
from export.replay import step_shape_of
from omruntime.buckets import Phase
from omruntime.manifest import Manifest


@dataclass(frozen=True)
class GreedyAnswer:
    """The tokens, and for each how far the second best logit was behind."""

    token_ids: tuple[int, ...]
    gaps: tuple[float, ...]


def float16_answers(
    bundle: Path, prompts: list[tuple[int, ...]], num_tokens: int
) -> list[GreedyAnswer]:
    """Run the graph that the bundle keeps, npu operators expanded; end tokens do not end it."""
    manifest = Manifest.read(bundle)
    session = open_kept_program(bundle, manifest, num_threads=2)
    table = manifest.bucket_table()
    answers = []
    for prompt in prompts:
        runner = PagedRunner(session, step_shape_of(manifest), [len(prompt) + num_tokens])
        token_ids: list[int] = []
        gaps: list[float] = []
        for step in chunked_prefill(prompt, table):
            rows = [Row(0, row.token_ids, row.past_len) for row in step.rows]
            logits = runner.run(step.bucket, rows, append=True).logits
        take(logits, token_ids, gaps)
        while len(token_ids) < num_tokens:
            past_len = len(prompt) + len(token_ids) - 1
            bucket = table.pick(Phase.DECODE, 1, 1, -(-past_len // table.block_size))
            assert bucket is not None
            result = runner.run(bucket, [Row(0, (token_ids[-1],), past_len)], append=True)
            take(result.logits, token_ids, gaps)
        answers.append(GreedyAnswer(tuple(token_ids), tuple(gaps)))
    return answers


def take(logits: NDArray[np.floating], token_ids: list[int], gaps: list[float]) -> None:
    second, first = np.sort(np.ravel(logits))[-2:]
    token_ids.append(int(np.argmax(logits)))
    gaps.append(float(first - second))
