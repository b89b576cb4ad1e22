"""Replay: a bundle's step program in ONNX Runtime against its recorded reference.

Needs no torch and no checkpoint. Runs in the shapes of the bundle's buckets, padding included,
over scrambled blocks, as the parity gate does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from export.kept_program import open_kept_program
from export.paged_runner import PagedRunner, Row, StepSession
from export.parity_cases import chunked_prefill
from export.reference import ReferenceCase, read_reference
from export.step_shape import StepShape
from omruntime.buckets import BucketTable, Phase
from omruntime.errors import BundleError
from omruntime.manifest import Manifest


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay found.

    Attributes:
        num_tokens: Greedy tokens compared, all equal but for the near ties.
        num_near_ties: Tokens that differ although the checkpoint's logits of both are closer
            than twice the tolerance.
    """

    num_tokens: int
    num_near_ties: int
    max_abs_logits_diff: float


def replay_bundle(bundle: Path, manifest: Manifest, num_threads: int = 0) -> ReplayReport:
    """Run every recorded case and compare tokens and logits.

    Args:
        bundle: The folder, its files verified.
        manifest: Its manifest.
        num_threads: Of ONNX Runtime; 0 leaves it to the library.

    Raises:
        BundleError: They differ, or the reference or the program cannot be used.
    """
    cases = read_reference(bundle)
    session = open_kept_program(bundle, manifest, num_threads)
    return replay_cases(session, manifest, cases)


def replay_cases(
    session: StepSession, manifest: Manifest, cases: tuple[ReferenceCase, ...]
) -> ReplayReport:
    """As `replay_bundle`, over an open program.

    Raises:
        BundleError: Tokens or logits differ.
    """
    table = manifest.bucket_table()
    lengths = [len(case.prompt_ids) + len(case.greedy_ids) for case in cases]
    runner = PagedRunner(session, step_shape_of(manifest), lengths)
    comparison = _Comparison(manifest.parity.tolerance)
    for index, case in enumerate(cases):
        comparison.add(case, 0, _prefill(runner, table, index, case.prompt_ids))
    for step in range(1, max(len(case.greedy_ids) for case in cases)):
        rows = [
            Row(index, (case.greedy_ids[step - 1],), len(case.prompt_ids) + step - 1)
            for index, case in enumerate(cases)
            if step < len(case.greedy_ids)
        ]
        for row, logits in zip(rows, _decode(runner, table, rows), strict=True):
            comparison.add(cases[row.sequence], step, logits)
    return comparison.report()


def step_shape_of(manifest: Manifest) -> StepShape:
    """The sizes of a bundle's step graph."""
    model = manifest.model
    return StepShape(
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_size=manifest.kv.block_size,
        vocab_size=model.vocab_size,
        layout=manifest.kv.layout,
        dtype=manifest.kv.dtype,
    )


def _prefill(
    runner: PagedRunner, table: BucketTable, sequence: int, token_ids: tuple[int, ...]
) -> NDArray[np.float32]:
    """Run a prompt in chunks; returns the logits of its last token, [vocabulary]."""
    results = [
        runner.run(
            step.bucket,
            [Row(sequence, row.token_ids, row.past_len) for row in step.rows],
            append=True,
        )
        for step in chunked_prefill(token_ids, table)
    ]
    return results[-1].logits.reshape(-1)


def _decode(runner: PagedRunner, table: BucketTable, rows: list[Row]) -> NDArray[np.float32]:
    """Run one step, in pieces when no bucket takes all rows; returns [rows, vocabulary]."""
    most = table.max_batch(Phase.DECODE)
    blocks = max(1, *(-(-row.past_len // table.block_size) for row in rows))
    pieces = []
    for start in range(0, len(rows), most):
        piece = rows[start : start + most]
        bucket = table.pick(Phase.DECODE, len(piece), 1, blocks)
        assert bucket is not None, "the verified table covers every decode step"
        pieces.append(runner.run(bucket, piece, append=True).logits)
    return np.concatenate(pieces)


class _Comparison:
    """Counts over all compared steps."""

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._num_tokens = 0
        self._num_near_ties = 0
        self._max_diff = 0.0

    def add(self, case: ReferenceCase, step: int, logits: NDArray[np.float32]) -> None:
        """Compare one step's row of logits, float32 [vocabulary].

        Raises:
            BundleError: A logit or the chosen token differs.
        """
        columns, wanted = case.columns[step], case.logits[step]
        diff = float(np.abs(logits[columns] - wanted).max())
        # Written so that a NaN fails.
        if not diff <= self._tolerance:
            raise BundleError(
                f"the program's logits differ by {diff:.3g} from the recorded checkpoint's at "
                f"generated token {step}, the tolerance is {self._tolerance:.3g}; "
                f"rebuild the bundle on this kind of machine"
            )
        self._max_diff = max(self._max_diff, diff)
        self._num_tokens += 1
        self._compare_token(case, step, int(logits.argmax()))

    def _compare_token(self, case: ReferenceCase, step: int, got: int) -> None:
        wanted = case.greedy_ids[step]
        if got == wanted:
            return
        known = dict(zip(case.columns[step].tolist(), case.logits[step].tolist(), strict=True))
        near = {wanted, got} <= known.keys() and (
            abs(known[wanted] - known[got]) <= 2 * self._tolerance
        )
        if not near:
            raise BundleError(
                f"the program chose token {got} where the recorded checkpoint chose {wanted}, "
                f"at generated token {step}; rebuild the bundle"
            )
        self._num_near_ties += 1

    def report(self) -> ReplayReport:
        return ReplayReport(self._num_tokens, self._num_near_ties, self._max_diff)
