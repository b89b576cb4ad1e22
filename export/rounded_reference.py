"""The checkpoint with its weights and every module's result rounded to 16 bits.

What float16 or bfloat16 costs a checkpoint, measured without our graph. All arithmetic stays
float32, as a matrix unit's sums do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from export.hf_reference import TeacherForced, teacher_forced
from export.onnx_writer import convert
from export.weight_format import WeightFormat
from export.weight_rounding import as_stored


@dataclass(frozen=True, slots=True)
class Rounding:
    """What is rounded to what.

    Attributes:
        dtype: Of weights and results, float16 or bfloat16.
        weights: A format that matrices go through before; None for none.
    """

    dtype: torch.dtype
    weights: WeightFormat | None = None


def rounded_reference(
    model: PreTrainedModel,
    token_ids: Sequence[int],
    positions: Sequence[int],
    rounding: Rounding,
) -> TeacherForced:
    """As `teacher_forced`; the model's weights stay rounded, so nothing may need them after."""
    round_result = _RoundResult(rounding.dtype)
    _store_weights(model, rounding.weights)
    for parameter in model.parameters():
        parameter.data.copy_(round_result.rounded(parameter.data))
    hooks = [module.register_forward_hook(round_result) for module in model.modules()]
    try:
        return teacher_forced(model, token_ids, positions)
    finally:
        for hook in hooks:
            hook.remove()


def _store_weights(model: PreTrainedModel, weights: WeightFormat | None) -> None:
    if weights is None:
        return
    for module in model.modules():
        # GPT-2's own kind of linear layer has its outputs in the second axis.
        axis = 1 if type(module).__name__ == "Conv1D" else 0
        for parameter in module.parameters(recurse=False):
            if parameter.ndim >= 2:
                parameter.data.copy_(as_stored(parameter.data, weights, axis))


class _RoundResult:
    """A forward hook that rounds what a module gives."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def rounded(self, tensor: Tensor) -> Tensor:
        return convert(tensor, self._dtype).to(tensor.dtype)

    def __call__(self, _module: nn.Module, _inputs: object, result: object) -> object:
        if isinstance(result, Tensor):
            return self.rounded(result) if result.dtype is torch.float32 else result
        # Such as the cosines and sines of a rotary embedding; models' own output classes are not
        # plain tuples, and hold what was rounded already.
        if type(result) is tuple:
            return tuple(self(_module, None, part) for part in result)
        return result
