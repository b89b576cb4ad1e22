"""Mixture-of-experts layers with fixed shapes, as transformers' experts registry calls them.

Every expert runs on every token and a dense routing matrix weighs the results: no shape depends
on the routing, at the price of the experts that were not chosen.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from omruntime.errors import ExportError

EXPERTS_NAME = "omserve_dense"


def use_dense_experts(model: PreTrainedModel) -> str | None:
    """Switch the model's experts, if it has any; returns what `restore_experts` wants."""
    before = getattr(model.config, "_experts_implementation", None)
    if before is None:
        return None
    ALL_EXPERTS_FUNCTIONS.register(EXPERTS_NAME, dense_experts)
    model.config._experts_implementation = EXPERTS_NAME
    return str(before)


def restore_experts(model: PreTrainedModel, before: str | None) -> None:
    """Undo `use_dense_experts`."""
    if before is not None:
        model.config._experts_implementation = before


def dense_experts(
    module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Run all experts.

    Args:
        module: With gate_up_proj [experts, 2 * width, hidden] and down_proj
            [experts, hidden, width].
        hidden_states: [tokens, hidden].
        top_k_index: [tokens, chosen]; top_k_weights alike.

    Returns:
        [tokens, hidden].
    """
    if module.has_bias or module.is_transposed or not module.has_gate:
        raise ExportError(
            "experts with biases, without gates or stored transposed are not built in"
        )
    gate_up, down = module.gate_up_proj, module.down_proj
    assert isinstance(gate_up, Tensor)
    assert isinstance(down, Tensor)
    experts = torch.arange(gate_up.shape[0], dtype=top_k_index.dtype)
    chosen = (top_k_index[..., None] == experts).to(hidden_states.dtype)
    routing = (chosen * top_k_weights[..., None].to(hidden_states.dtype)).sum(dim=1)
    inner = module._apply_gate(hidden_states[None] @ gate_up.transpose(1, 2))  # type: ignore[operator]
    outer = inner @ down.transpose(1, 2)
    weighted: Tensor = (outer * routing.t()[..., None]).sum(dim=0)
    return weighted
