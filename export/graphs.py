"""StepGraph: an unmodified Hugging Face model as the step of graph contract 1.

Owns the wrapping: which inputs go where, the last-token gather in front of the output head, the
order of `new_kv`. Attention itself is `paged_attention.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from export.experts import restore_experts, use_dense_experts
from export.paged_attention import ATTENTION_NAME, PagedStep, register_attention
from export.past import past_of
from export.profiles import CPU, Profile
from export.step_shape import StepShape

# Of a masked score. Half of the lowest float32; the lowest float16 would overflow, and -10000
# leaves nothing of a score that is in its range.
_LOW = torch.finfo(torch.float32).min / 2
_HIDDEN = {"float32": _LOW, "bfloat16": _LOW, "float16": -10000.0}


class StepGraph(nn.Module):
    """A model as a function of graph contract 1, in float32 and in the profile's pool layout.

    While it exists, the model attends by the paged attention, runs all of its experts and keeps
    its rope frequencies; `release` gives it back.
    """

    def __init__(self, model: PreTrainedModel, shape: StepShape, profile: Profile = CPU) -> None:
        super().__init__()
        register_attention()
        self.model = model
        self.shape = shape
        self.profile = profile
        self._last = _LastToken()
        self._attention_before = model.config._attn_implementation
        model.set_attn_implementation(ATTENTION_NAME)
        self._experts_before = use_dense_experts(model)
        self._rope_before = _freeze_rope(model)
        head = model.get_output_embeddings()
        self._hook = head.register_forward_pre_hook(self._last)

    def release(self) -> PreTrainedModel:
        """Undo what the constructor changed and return the model."""
        self._hook.remove()
        for module, rope_type in self._rope_before:
            vars(module)["rope_type"] = rope_type
        restore_experts(self.model, self._experts_before)
        self.model.set_attn_implementation(self._attention_before)
        return self.model

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        block_tables: Tensor,
        past_lens: Tensor,
        last_index: Tensor,
        pools: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Run one step; shapes as in `input_specs` and `output_specs`."""
        past = past_of(self.profile.past_gather, self.shape, pools, block_tables)
        num_past = block_tables.shape[1] * self.shape.block_size
        step = PagedStep(positions, past_lens, past, num_past, _HIDDEN[self.profile.dtype])
        self._last.index = last_index
        logits = self.model(
            input_ids=input_ids,
            position_ids=positions,
            use_cache=False,
            paged_step=step,
        ).logits
        self._last.index = None
        new_kv = [step.new_kv[layer] for layer in range(self.shape.num_layers)]
        return logits, past.collect(new_kv)


class _LastToken:
    """A hook in front of the output head: only each row's last token goes through it."""

    def __init__(self) -> None:
        self.index: Tensor | None = None

    def __call__(self, _head: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor]:
        hidden = arguments[0]
        assert self.index is not None, "the head runs inside of StepGraph.forward only"
        batch, tokens, width = hidden.shape
        row = torch.arange(batch, dtype=torch.int32) * tokens + self.index
        return (hidden.reshape(-1, width).index_select(0, row),)


def _freeze_rope(model: PreTrainedModel) -> list[tuple[nn.Module, object]]:
    """Stop rope types that follow the longest position; below their switch nothing changes.

    `architectures.require_length` refuses lengths beyond it.
    """
    frozen: list[tuple[nn.Module, object]] = []
    for module in model.modules():
        rope_type = vars(module).get("rope_type")
        if rope_type is not None:
            frozen.append((module, rope_type))
            names = rope_type.keys() if isinstance(rope_type, dict) else ()
            fixed = dict.fromkeys(names, "default") if names else "default"
            vars(module)["rope_type"] = fixed
    return frozen
