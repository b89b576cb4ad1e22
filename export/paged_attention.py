"""Attention over a paged cache, traceable, as transformers' attention registry calls it.

Owns the arithmetic of one layer's attention and the masks that all layers share. How a model is
wrapped and called is `graphs.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from export.past import Past
from omruntime.errors import ExportError

# Not one of transformers' mask kinds, so models build no mask of their own and pass None.
ATTENTION_NAME = "omserve_paged"


@dataclass(slots=True)
class PagedStep:
    """The step that a traced model call runs; every layer's attention reads it.

    Attributes:
        positions: int32 [batch, tokens].
        past_lens: int32 [batch].
        past: The block pool.
        num_past: Positions that each row gathers from it.
        hidden: What is added to the score of an invisible position; far below any score, and
            not so low that a score added to it overflows.
        new_kv: Filled by the layers: layer index to new keys and values,
            each [batch, num_kv_heads, tokens, head_dim].
    """

    positions: Tensor
    past_lens: Tensor
    past: Past
    num_past: int
    hidden: float
    new_kv: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    masks: dict[tuple[int | None, int], Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, group: int) -> Tensor:
        """The additive mask over [past ; new] positions, made once for each kind of layer.

        Returns:
            [1, batch, group * tokens, past positions + tokens], equal for all of a group.
        """
        if (window, group) not in self.masks:
            batch, tokens = self.positions.shape
            # As numbers from here on: not every device moves truth values.
            past = self._added(self._past_visible(window)).expand(batch, tokens, self.num_past)
            new = self._added(self._new_visible(window))[None].expand(batch, tokens, tokens)
            added = torch.cat([past, new], dim=-1)
            total = added.shape[-1]
            grouped = added[:, None].expand(batch, group, tokens, total)
            self.masks[window, group] = grouped.reshape(1, batch, group * tokens, total)
        return self.masks[window, group]

    def _added(self, visible: Tensor) -> Tensor:
        return torch.where(visible, 0.0, self.hidden)

    def _past_visible(self, window: int | None) -> Tensor:
        past = torch.arange(self.num_past, dtype=torch.int32)
        visible = (past[None] < self.past_lens[:, None])[:, None]
        if window is not None:
            visible = visible & (self.positions[:, :, None] - past < window)
        return visible

    def _new_visible(self, window: int | None) -> Tensor:
        # By index, not by position: the padding of a row repeats its last position.
        index = torch.arange(self.positions.shape[1], dtype=torch.int32)
        distance = index[:, None] - index[None, :]
        visible = distance >= 0
        return visible if window is None else visible & (distance < window)


def register_attention() -> None:
    """Make `ATTENTION_NAME` known to transformers; repeating it is harmless."""
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, paged_attention)


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    paged_step: PagedStep,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_unused: object,
) -> tuple[Tensor, None]:
    """Attend to [gathered past ; new tokens] and leave the new keys and values in `paged_step`.

    Grouped queries share their key head by broadcast; keys and values are never repeated.

    Args:
        query: [batch, num_heads, tokens, head_dim], after rotary; key and value alike with
            num_kv_heads.
        attention_mask: Ignored: the masks come from `paged_step`.

    Returns:
        [batch, tokens, num_heads, head_dim], and no weights.
    """
    if s_aux is not None:
        raise ExportError("attention sinks are not built in; use a model without them")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    batch, num_heads, tokens, head_dim = query.shape
    num_kv_heads = key.shape[1]
    group = num_heads // num_kv_heads
    scale = head_dim**-0.5 if scaling is None else scaling

    paged_step.new_kv[layer] = (key, value)
    new_keys, new_values = key.permute(1, 0, 2, 3), value.permute(1, 0, 2, 3)
    past_keys, past_values = paged_step.past.read(layer)
    rows = (query * scale).reshape(batch, num_kv_heads, group * tokens, head_dim)
    rows = rows.permute(1, 0, 2, 3)

    scores = torch.cat(
        [rows @ past_keys.transpose(-1, -2), rows @ new_keys.transpose(-1, -2)], dim=-1
    )
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    weights = (scores + paged_step.mask(sliding_window, group)).softmax(-1)
    past_part, new_part = torch.split(weights, [past_keys.shape[2], tokens], dim=-1)
    mixed = past_part @ past_values + new_part @ new_values
    mixed = mixed.reshape(num_kv_heads, batch, group, tokens, head_dim).permute(1, 3, 0, 2, 4)
    return mixed.reshape(batch, tokens, num_heads, head_dim), None
