"""Attention over a paged cache, traceable, as transformers' attention registry calls it.

Owns the arithmetic of one layer's attention and the masks that all layers share. How a model is
wrapped and called is `graphs.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from omruntime.errors import ExportError

# Not one of transformers' mask kinds, so models build no mask of their own and pass None.
ATTENTION_NAME = "omserve_paged"
# Half of the lowest float32: adding a score to it cannot overflow, so no row is all -inf.
HIDDEN = torch.finfo(torch.float32).min / 2


@dataclass(slots=True)
class PagedStep:
    """The step that a traced model call runs; every layer's attention reads it.

    Attributes:
        positions: int32 [batch, tokens].
        block_tables: int32 [batch, past_blocks].
        past_lens: int32 [batch].
        pools: key and value pool of each layer, [num_kv_heads, num_blocks, block_size, head_dim];
            finite everywhere, as masked positions still enter a product with zero.
        new_kv: filled by the layers: layer index to new keys and values,
            each [num_kv_heads, batch * tokens, head_dim].
    """

    positions: Tensor
    block_tables: Tensor
    past_lens: Tensor
    pools: tuple[tuple[Tensor, Tensor], ...]
    new_kv: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    masks: dict[tuple[int | None, int], Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, group: int) -> Tensor:
        """The additive mask over [past ; new] positions, made once for each kind of layer.

        Returns:
            [1, batch, group * tokens, past positions + tokens], equal for all of a group.
        """
        if (window, group) not in self.masks:
            batch, tokens = self.positions.shape
            new = self._new_visible(window)[None].expand(batch, tokens, tokens)
            visible = torch.cat([self._past_visible(window), new], dim=-1)
            added = torch.where(visible, 0.0, HIDDEN)
            total = added.shape[-1]
            grouped = added[:, None].expand(batch, group, tokens, total)
            self.masks[window, group] = grouped.reshape(1, batch, group * tokens, total)
        return self.masks[window, group]

    def _past_visible(self, window: int | None) -> Tensor:
        batch, tokens = self.positions.shape
        num_past = self.block_tables.shape[1] * self.pools[0][0].shape[2]
        past = torch.arange(num_past, dtype=torch.int32)
        visible = (past[None] < self.past_lens[:, None])[:, None]
        if window is not None:
            visible = visible & (self.positions[:, :, None] - past < window)
        return visible.expand(batch, tokens, num_past)

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

    new_keys, new_values = key.permute(1, 0, 2, 3), value.permute(1, 0, 2, 3)
    paged_step.new_kv[layer] = (
        new_keys.reshape(num_kv_heads, -1, head_dim),
        new_values.reshape(num_kv_heads, -1, value.shape[-1]),
    )
    past_keys, past_values = (_gather(pool, paged_step) for pool in paged_step.pools[layer])
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


def _gather(pool: Tensor, step: PagedStep) -> Tensor:
    """The past of every row, [num_kv_heads, batch, past_blocks * block_size, head_dim]."""
    # index_select becomes a Gather; indexing by a tensor would transpose the whole pool.
    blocks = pool.index_select(1, step.block_tables.reshape(-1))
    num_kv_heads, _, block_size, head_dim = pool.shape
    batch, past_blocks = step.block_tables.shape
    return blocks.reshape(num_kv_heads, batch, past_blocks * block_size, head_dim)
