"""How far a graph may be from the checkpoint: by rounding, and by nothing else.

Owns the thresholds of the parity gate. In float32 they follow the size of the checkpoint's own
logits, as rounding does. In 16 bits the checkpoint itself is run once more with its weights and
every module's result rounded to the same type (`rounded_reference.py`): an independent measure of
what that type costs this checkpoint. A graph rounds in other places, so it may be off by a small
multiple of that; a wrong mask, position or head is off by far more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from export.hf_reference import Floats, TeacherForced
from omruntime.errors import ExportError

# What float32 over some tens of layers rounds away, of the largest logit; an error in a mask, a
# position or a head reaches tens of percent.
_SINGLE_ROUNDING = 2e-6
_SINGLE_RELATIVE = 2.5e-5
_SINGLE_LEAST = 2e-5
_SINGLE_NEAR_TIE = 1e-4
# Of a layer's largest key or value.
_SINGLE_KV_RELATIVE = 2e-4
_LEAST_KV_SCALE = 1e-3
# How much more than the rounded checkpoint a graph may be off at worst, and on the average.
_HALF_FACTOR = 4.0
_HALF_MEAN_FACTOR = 2.0
# Of the largest logit, or of a layer's largest key or value: two units in the last place.
_HALF_LEAST = {"float16": 2.0**-9, "bfloat16": 2.0**-6}
# A float16 that costs more than this of the largest logit does not hold the checkpoint; bfloat16
# always costs a few percent, and what that means for answers is measured in `quality.py`.
_HALF_MOST = 0.05


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The thresholds for one checkpoint.

    Attributes:
        logits: For each single logit of a row.
        mean_logits: For the mean over rows of the largest difference of a row; None for none.
        near_tie: Two logits of the checkpoint this close may change places.
        kv: For each key or value, one number a layer.
        expected: What `logits` is a multiple of; 0 where it is not measured.
        allows_overflow: Whether rows that are not finite are counted instead of failing.
    """

    logits: float
    mean_logits: float | None
    near_tie: float
    kv: tuple[float, ...]
    expected: float = 0.0
    allows_overflow: bool = False


def single_tolerance(reference: TeacherForced) -> Tolerance:
    """The thresholds in float32."""
    largest = largest_logit(reference)
    return Tolerance(
        logits=max(_SINGLE_LEAST, _SINGLE_RELATIVE * largest),
        mean_logits=None,
        # Where all logits lie far from zero, as GPT-2's do, more is rounded away than 1e-4; below
        # 50, as elsewhere, the bound is as it was.
        near_tie=max(_SINGLE_NEAR_TIE, _SINGLE_ROUNDING * largest),
        kv=tuple(
            _SINGLE_KV_RELATIVE * max(_LEAST_KV_SCALE, float(np.abs(layer).max()))
            for layer in reference.kv
        ),
    )


def half_tolerance(
    reference: TeacherForced, rounded: TeacherForced, dtype: str, *, allows_overflow: bool
) -> Tolerance:
    """The thresholds in float16 or bfloat16.

    Args:
        rounded: The same run with weights and results rounded to that type.

    Raises:
        ExportError: float16 changes this checkpoint's answers too much, or they overflow.
    """
    largest = largest_logit(reference)
    errors = [
        float(np.abs(rounded.logits[position] - row).max())
        for position, row in reference.logits.items()
    ]
    expected, mean = max(errors), float(np.mean(errors))
    must_hold = dtype == "float16" and not allows_overflow
    if must_hold and not expected <= _HALF_MOST * largest:
        raise ExportError(
            f"float16 does not hold this checkpoint: rounding its weights and results changes "
            f"logits by {expected:.3g}, wanted at most {_HALF_MOST:.0%} of the largest, "
            f"{largest:.3g}; build it for another target"
        )
    least = _HALF_LEAST[dtype] * largest
    tolerance = max(least, _HALF_FACTOR * expected)
    return Tolerance(
        logits=tolerance,
        mean_logits=max(least, _HALF_MEAN_FACTOR * mean),
        near_tie=2 * tolerance,
        kv=tuple(
            _kv_limit(wanted, got, _HALF_LEAST[dtype])
            for wanted, got in zip(reference.kv, rounded.kv, strict=True)
        ),
        expected=expected,
        allows_overflow=allows_overflow,
    )


def largest_logit(reference: TeacherForced) -> float:
    """The largest absolute logit of the checkpoint.

    Raises:
        ExportError: Its own logits are not finite.
    """
    for position, row in reference.logits.items():
        if not np.isfinite(row).all():
            raise ExportError(
                f"the checkpoint itself gives NaN or infinity: transformers' logits at position "
                f"{position} hold it, so nothing can be compared; its config or weights are wrong"
            )
    return max(float(np.abs(row).max()) for row in reference.logits.values())


def _kv_limit(wanted: Floats, rounded: Floats, relative: float) -> float:
    """For one layer, [2, num_kv_heads, positions, head_dim]."""
    least = relative * max(_LEAST_KV_SCALE, float(np.abs(wanted).max()))
    return max(least, _HALF_FACTOR * float(np.abs(rounded - wanted).max()))
