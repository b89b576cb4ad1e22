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
    num_experts, double_width, hidden = gate_up.shape
    experts = torch.arange(num_experts, dtype=torch.int32)
    chosen = (top_k_index.to(torch.int32)[..., None] == experts).to(hidden_states.dtype)
    routing = (chosen * top_k_weights[..., None].to(hidden_states.dtype)).sum(dim=1)[..., None]
    # One product over the rows of all experts, and one that sums over them as it goes.
    inner = nn.functional.linear(hidden_states, gate_up.reshape(-1, hidden))
    inner = module._apply_gate(inner.reshape(-1, num_experts, double_width))  # type: ignore[operator]
    # An expert that was not chosen may overflow on tokens it never learned.
    weighted = torch.where(routing > 0, inner * routing, 0.0)
    return weighted.reshape(-1, num_experts * double_width // 2) @ (
        down.permute(0, 2, 1).reshape(-1, hidden)
    )
