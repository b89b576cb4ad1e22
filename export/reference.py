"""Reference: what the checkpoint itself answers, recorded when a bundle is built.

Plain data without torch: `replay.py` holds a bundle against it on machines that have no
checkpoint. The logits are recorded in part, the whole of them would be larger than the model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omruntime.errors import BundleError

REFERENCE_PATH = "reports/reference.json"
_VERSION = 1
_NUM_TOP = 8
_NUM_SPREAD = 24


@dataclass(frozen=True, slots=True)
class ReferenceCase:
    """One prompt and its greedy continuation.

    Attributes:
        greedy_ids: What the checkpoint chose at each step, end tokens not heeded.
        columns: int64 [steps, n]; ids whose logits are recorded: the best ones of the step,
            then some spread over the vocabulary.
        logits: float32 [steps, n].
    """

    prompt_ids: tuple[int, ...]
    greedy_ids: tuple[int, ...]
    columns: NDArray[np.int64]
    logits: NDArray[np.float32]


def record_case(prompt_ids: tuple[int, ...], logits: NDArray[np.float32]) -> ReferenceCase:
    """Record a greedy run of the checkpoint.

    Args:
        prompt_ids: The prompt.
        logits: float32 [steps, vocabulary], the row of each generated token.
    """
    num_steps, vocab_size = logits.shape
    num_top = min(_NUM_TOP, vocab_size)
    top = np.argsort(-logits, axis=1, kind="stable")[:, :num_top]
    spread = np.linspace(0, vocab_size - 1, _NUM_SPREAD).astype(np.int64)
    columns = np.concatenate([top, np.tile(spread, (num_steps, 1))], axis=1)
    return ReferenceCase(
        prompt_ids=prompt_ids,
        greedy_ids=tuple(int(token_id) for token_id in top[:, 0]),
        columns=columns,
        logits=np.take_along_axis(logits, columns, axis=1),
    )


def write_reference(folder: Path, cases: tuple[ReferenceCase, ...]) -> None:
    """Write `reports/reference.json` below a bundle folder; equal cases give equal bytes."""
    plain = {
        "version": _VERSION,
        "cases": [
            {
                "prompt_ids": case.prompt_ids,
                "greedy_ids": case.greedy_ids,
                "columns": case.columns.tolist(),
                "logits": [[float(f"{x:.9g}") for x in row] for row in case.logits.tolist()],
            }
            for case in cases
        ],
    }
    path = folder / REFERENCE_PATH
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(plain, sort_keys=True) + "\n", encoding="utf-8")


def read_reference(folder: Path) -> tuple[ReferenceCase, ...]:
    """Read what `write_reference` wrote.

    Raises:
        BundleError: No such file, or its content is not one of ours.
    """
    path = folder / REFERENCE_PATH
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if plain["version"] != _VERSION:
            raise ValueError(f"version {plain['version']}, this omserve reads {_VERSION}")
        cases = tuple(_parse_case(case) for case in plain["cases"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BundleError(f"cannot read {path}: {error}; rebuild the bundle") from error
    if not cases:
        raise BundleError(f"{path} holds no case; rebuild the bundle")
    return cases


def _parse_case(plain: dict[str, list[int]]) -> ReferenceCase:
    columns = np.asarray(plain["columns"], np.int64)
    logits = np.asarray(plain["logits"], np.float32)
    num_steps = len(plain["greedy_ids"])
    if columns.ndim != 2 or columns.shape != logits.shape or len(columns) != num_steps:
        raise ValueError(f"{num_steps} tokens, columns {columns.shape}, logits {logits.shape}")
    prompt_ids, greedy_ids = tuple(plain["prompt_ids"]), tuple(plain["greedy_ids"])
    if not prompt_ids or not greedy_ids:
        raise ValueError("a case without tokens")
    return ReferenceCase(prompt_ids, greedy_ids, columns, logits)
