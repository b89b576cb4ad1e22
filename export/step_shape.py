"""StepShape: the sizes of one model's step graph, and the tensors that follow from them.

Plain data without torch, for tracing, for the parity gate and for a replay without checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from omruntime.manifest import KVLayout, TensorSpec


@dataclass(frozen=True, slots=True)
class StepShape:
    """What fixes the tensors of a step graph besides the symbolic dimensions.

    Attributes:
        dtype: Of the pool and of new keys and values, as NumPy names it.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    vocab_size: int
    layout: KVLayout = KVLayout.HEAD_MAJOR
    dtype: str = "float32"

    @property
    def num_planes(self) -> int:
        """Rows of a token, ordered by layer, then key before value, then KV head."""
        return self.num_layers * 2 * self.num_kv_heads

    @property
    def token_elements(self) -> int:
        """Key and value elements of one token, all layers."""
        return self.num_planes * self.head_dim


def input_specs(shape: StepShape) -> tuple[TensorSpec, ...]:
    """Names, dtypes and symbolic shapes of the graph's inputs, in order."""
    return (
        TensorSpec("input_ids", "int32", ("batch", "tokens")),
        TensorSpec("positions", "int32", ("batch", "tokens")),
        TensorSpec("block_tables", "int32", ("batch", "past_blocks")),
        TensorSpec("past_lens", "int32", ("batch",)),
        TensorSpec("last_index", "int32", ("batch",)),
        *_pool_specs(shape),
    )


def output_specs(shape: StepShape) -> tuple[TensorSpec, ...]:
    """Names, dtypes and symbolic shapes of the graph's outputs, in order."""
    if shape.layout is KVLayout.TOKEN_MAJOR:
        new_kv: tuple[int | str, ...] = ("new_tokens", shape.num_planes, shape.head_dim)
    else:
        new_kv = (shape.num_planes, "new_tokens", shape.head_dim)
    return (
        TensorSpec("logits", "float32", ("batch", shape.vocab_size)),
        TensorSpec("new_kv", shape.dtype, new_kv),
    )


def _pool_specs(shape: StepShape) -> tuple[TensorSpec, ...]:
    if shape.layout is KVLayout.TOKEN_MAJOR:
        whole = ("num_slots", shape.num_planes, shape.head_dim)
        return (TensorSpec("kv_pool", shape.dtype, whole),)
    part = (shape.num_kv_heads, "num_blocks", shape.block_size, shape.head_dim)
    return tuple(
        TensorSpec(f"kv_pool.{layer}.{name}", shape.dtype, part)
        for layer in range(shape.num_layers)
        for name in ("key", "value")
    )
