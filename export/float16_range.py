"""What of a checkpoint float16 cannot hold: weights and activations beyond its range.

Owns the measurement, its report in reports/range.json and the refusal. What an overflow does to
an answer: infinity in one layer is NaN in the next, and greedy decoding then repeats token 0.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from omruntime.errors import ExportError

RANGE_REPORT_PATH = "reports/range.json"
LARGEST = 65504.0
# Smaller ones round to zero: half of the smallest subnormal number.
_SMALLEST = 2.0**-25
_MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class TensorRange:
    """One weight tensor.

    Attributes:
        num_overflowing: Values beyond the largest float16.
        num_flushed: Values other than zero that become zero.
    """

    name: str
    max_abs: float
    num_overflowing: int
    num_flushed: int


@dataclass(slots=True)
class RangeReport:
    """All that was measured.

    Attributes:
        activations: Module, with `input` or `output`, to the largest absolute value there over
            the parity sequence.
    """

    weights: list[TensorRange] = field(default_factory=list)
    activations: dict[str, float] = field(default_factory=dict)

    @property
    def overflowing_weights(self) -> list[TensorRange]:
        """Those that hold a value beyond float16."""
        return [weight for weight in self.weights if weight.num_overflowing]

    @property
    def overflowing_activations(self) -> dict[str, float]:
        """Those that pass float16."""
        return {name: size for name, size in self.activations.items() if not size <= LARGEST}

    def write(self, folder: Path) -> None:
        """Write `reports/range.json` below a folder."""
        path = folder / RANGE_REPORT_PATH
        path.parent.mkdir(exist_ok=True)
        plain = {
            "dtype": "float16",
            "largest": LARGEST,
            "num_overflowing": sum(weight.num_overflowing for weight in self.weights),
            "num_flushed": sum(weight.num_flushed for weight in self.weights),
        } | dataclasses.asdict(self)
        path.write_text(json.dumps(plain, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def measure_weights(model: PreTrainedModel) -> list[TensorRange]:
    """The range of every parameter."""
    return [_range(name, parameter.detach()) for name, parameter in model.named_parameters()]


@contextmanager
def measured_activations(model: PreTrainedModel, report: RangeReport) -> Iterator[None]:
    """Note what goes in and out of every module while the model runs."""

    def note(name: str, values: object) -> None:
        for value in values if isinstance(values, tuple) else (values,):
            if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
                low, high = torch.aminmax(value.detach())
                size = max(-float(low), float(high))
                report.activations[name] = max(size, report.activations.get(name, 0.0))

    def hook_of(name: str) -> object:
        def hook(_module: nn.Module, inputs: object, result: object) -> None:
            note(f"{name} input", inputs)
            note(f"{name} output", result)

        return hook

    hooks = [
        module.register_forward_hook(hook_of(name))
        for name, module in model.named_modules()
        if name
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def require_weights_fit(report: RangeReport, allow_clipping: bool) -> None:
    """Refuse weights that float16 cannot hold, unless they may be clipped.

    Raises:
        ExportError: The message names the tensors.
    """
    beyond = report.overflowing_weights
    if beyond and not allow_clipping:
        listed = ", ".join(
            f"{w.name} ({w.num_overflowing} value(s), up to {w.max_abs:.4g})"
            for w in beyond[:_MAX_LISTED]
        )
        raise ExportError(
            f"{len(beyond)} weight tensor(s) hold values beyond float16's largest, "
            f"{LARGEST:.0f}: {listed}; give --allow-fp16-clipping to clip them, or build for "
            f"another target"
        )


def require_activations_fit(report: RangeReport, allow_clipping: bool) -> None:
    """Refuse a checkpoint whose activations pass float16, unless that is accepted.

    Raises:
        ExportError: The message names the first modules where it happens.
    """
    beyond = report.overflowing_activations
    if beyond and not allow_clipping:
        listed = ", ".join(
            f"{name} ({size:.4g})" for name, size in list(beyond.items())[:_MAX_LISTED]
        )
        raise ExportError(
            f"activations pass float16's largest, {LARGEST:.0f}, over the parity sequence: "
            f"{listed}; give --allow-fp16-clipping to build all the same, or build for another "
            f"target"
        )


def _range(name: str, tensor: Tensor) -> TensorRange:
    size = tensor.abs()
    return TensorRange(
        name=name,
        max_abs=float(size.max()) if size.numel() else 0.0,
        num_overflowing=int((size > LARGEST).sum()),
        num_flushed=int(((size > 0) & (size < _SMALLEST)).sum()),
    )
