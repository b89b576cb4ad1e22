"""The checkpoint with its weights and every module's result rounded to float16.

What float16 costs a checkpoint, measured without our graph. All arithmetic stays float32, as a
matrix unit's sums do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from export.hf_reference import TeacherForced, teacher_forced
from export.onnx_writer import convert


def rounded_reference(
    model: PreTrainedModel, token_ids: Sequence[int], positions: Sequence[int]
) -> TeacherForced:
    """As `teacher_forced`; the model's weights stay rounded, so nothing may need them after."""
    for parameter in model.parameters():
        parameter.data.copy_(_rounded(parameter.data))
    hooks = [module.register_forward_hook(_round_result) for module in model.modules()]
    try:
        return teacher_forced(model, token_ids, positions)
    finally:
        for hook in hooks:
            hook.remove()


def _rounded(tensor: Tensor) -> Tensor:
    return convert(tensor, torch.float16).to(tensor.dtype)


def _round_result(_module: nn.Module, _inputs: object, result: object) -> object:
    if isinstance(result, Tensor):
        return _rounded(result) if result.dtype is torch.float32 else result
    # Such as the cosines and sines of a rotary embedding; models' own output classes are not
    # plain tuples, and hold what was rounded already.
    if type(result) is tuple:
        return tuple(_round_result(_module, None, part) for part in result)
    return result
