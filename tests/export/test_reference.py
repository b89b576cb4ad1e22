from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from export.reference import REFERENCE_PATH, read_reference, record_case, write_reference
from omruntime.errors import BundleError


def logits(num_steps: int = 3, vocab_size: int = 131) -> np.ndarray:
    return np.random.default_rng(7).normal(size=(num_steps, vocab_size)).astype(np.float32)


def test_a_case_records_the_greedy_tokens_and_part_of_the_logits() -> None:
    full = logits()
    case = record_case((5, 6), full)
    assert case.greedy_ids == tuple(full.argmax(axis=1).tolist())
    assert case.columns.shape == case.logits.shape
    # The runner-up is there, or a near tie could not be told.
    assert (case.columns[:, 1] == np.argsort(-full, axis=1)[:, 1]).all()
    assert {0, 130} <= set(case.columns[0].tolist())


def test_written_and_read_cases_are_equal_to_the_bit(tmp_path: Path) -> None:
    case = record_case((5, 6), logits())
    write_reference(tmp_path, (case,))
    (back,) = read_reference(tmp_path)
    assert (back.prompt_ids, back.greedy_ids) == (case.prompt_ids, case.greedy_ids)
    assert (back.columns == case.columns).all()
    assert back.logits.tobytes() == case.logits.tobytes()


def test_a_vocabulary_smaller_than_the_record(tmp_path: Path) -> None:
    write_reference(tmp_path, (record_case((1,), logits(2, 4)),))
    assert len(read_reference(tmp_path)) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"cases": []},
        {"cases": [{}]},
        {"cases": [{"prompt_ids": [1], "greedy_ids": [1], "columns": [[1, 2]], "logits": [[0.5]]}]},
        {"cases": [{"prompt_ids": [], "greedy_ids": [1], "columns": [[1]], "logits": [[0.5]]}]},
    ],
)
def test_a_damaged_reference_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    write_reference(tmp_path, (record_case((1,), logits()),))
    path = tmp_path / REFERENCE_PATH
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(BundleError, match=r"reference\.json"):
        read_reference(tmp_path)


def test_no_reference_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="rebuild the bundle"):
        read_reference(tmp_path)
