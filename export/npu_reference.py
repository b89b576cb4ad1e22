"""The checkpoint in float16 on a card, against the float32 answers that the bundle records.

Says how far float16 arithmetic on the card moves this model's logits, which an OM of the same
checkpoint cannot be expected to beat. It does not run the OM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from export.checkpoint import load_model, open_checkpoint
from export.checkpoint_files import find_checkpoint
from export.npu_device import ReferenceDevice
from export.reference import ReferenceCase, read_reference
from export.spec import ExportSpec
from omruntime.errors import BundleError, ConfigError, ExportError


@dataclass(frozen=True, slots=True)
class NpuComparison:
    """What float16 on the device gave, teacher-forced on the recorded greedy answers.

    Attributes:
        num_tokens: Steps compared.
        num_equal: Steps whose best token is the recorded one.
        max_abs_logit: Largest recorded logit, for scale.
    """

    device: str
    num_tokens: int
    num_equal: int
    max_abs_logits_diff: float
    max_abs_logit: float

    def as_text(self) -> str:
        """One line for the report."""
        return (
            f"reference on {self.device}, float16: {self.num_equal} of {self.num_tokens} tokens "
            f"as recorded in float32, logits within {self.max_abs_logits_diff:.2g} of up to "
            f"{self.max_abs_logit:.3g}"
        )


@dataclass(frozen=True, slots=True)
class BundleAndCheckpoint:
    """What to compare.

    Attributes:
        bundle: The folder, its files verified.
        checkpoint: What the bundle was built from.
        checkpoint_sha256: What the bundle says of that checkpoint's files.
    """

    bundle: Path
    checkpoint: str
    checkpoint_sha256: str


def compare_bundle(
    given: BundleAndCheckpoint, device: ReferenceDevice, progress: Callable[[str], None]
) -> NpuComparison:
    """Run the checkpoint on the device over the bundle's recorded answers.

    Args:
        given: The bundle and its checkpoint.
        device: Where to run.
        progress: Called with one line at the start of each stage.

    Raises:
        BundleError: It was built from another checkpoint, or records no answers.
        ConfigError: The checkpoint's files are not whole, or the model does not fit the device.
        ExportError: The checkpoint cannot be loaded, or float16 gives NaN or infinity.
    """
    cases = read_reference(given.bundle)
    progress("checking the checkpoint's files")
    files = find_checkpoint(given.checkpoint)
    got = files.sha256()
    if got != given.checkpoint_sha256:
        raise BundleError(
            f"the bundle was built from another checkpoint: its files have sha256 "
            f"{given.checkpoint_sha256}, those of {given.checkpoint} {got}"
        )
    # Whatever the build accepted is settled.
    spec = ExportSpec(given.checkpoint, allow_unproven=True, allow_unused_tensors=True)
    with open_checkpoint(files, spec) as checkpoint:
        progress("loading the weights")
        model = load_model(checkpoint, spec)
    progress(f"running the checkpoint in float16 on {device.name}")
    return compare_cases(model, cases, device)


def compare_cases(
    model: PreTrainedModel, cases: tuple[ReferenceCase, ...], device: ReferenceDevice
) -> NpuComparison:
    """As `compare_bundle`, over a loaded model, which is moved to the device for good."""
    try:
        model.to(device=device.torch_device, dtype=torch.float16)
        rows = [_logits(model, case, device) for case in cases]
    # torch reports a device's own errors, out of memory included, as RuntimeError.
    except RuntimeError as error:
        raise ConfigError(f"{device.name} cannot run the checkpoint in float16: {error}") from error
    worst = max(_largest_difference(case, r) for case, r in zip(cases, rows, strict=True))
    equal = sum(
        int((r.argmax(axis=1) == np.asarray(case.greedy_ids)).sum())
        for case, r in zip(cases, rows, strict=True)
    )
    return NpuComparison(
        device=device.name,
        num_tokens=sum(len(case.greedy_ids) for case in cases),
        num_equal=equal,
        max_abs_logits_diff=worst,
        max_abs_logit=max(float(np.abs(case.logits).max()) for case in cases),
    )


def _logits(
    model: PreTrainedModel, case: ReferenceCase, device: ReferenceDevice
) -> NDArray[np.float32]:
    """float32 [steps, vocabulary]; one forward over the prompt and all but its last answer."""
    token_ids = [*case.prompt_ids, *case.greedy_ids[:-1]]
    with torch.no_grad():
        logits = model(
            input_ids=torch.tensor([token_ids], device=device.torch_device),
            use_cache=False,
            logits_to_keep=len(case.greedy_ids),
        ).logits[0]
    rows: NDArray[np.float32] = logits.float().cpu().numpy()
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise ExportError(
            f"float16 on {device.name} gives NaN or infinity at generated token {bad[0]}: the "
            f"checkpoint's values pass float16's 65504 somewhere; a float16 OM of it would answer "
            f"noise"
        )
    return rows


def _largest_difference(case: ReferenceCase, rows: NDArray[np.float32]) -> float:
    got = np.take_along_axis(rows, case.columns, axis=1)
    return float(np.abs(got - case.logits).max())
