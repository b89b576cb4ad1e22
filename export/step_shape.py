"""StepShape: the sizes of one model's step graph, and the tensors that follow from them.

Plain data without torch, for tracing, for the parity gate and for a replay without checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from omruntime.manifest import TensorSpec


@dataclass(frozen=True, slots=True)
class StepShape:
    """What fixes the tensors of a step graph besides the symbolic dimensions."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    vocab_size: int


def input_specs(shape: StepShape) -> tuple[TensorSpec, ...]:
    """Names, dtypes and symbolic shapes of the graph's inputs, in order."""
    pool = (shape.num_kv_heads, "num_blocks", shape.block_size, shape.head_dim)
    return (
        TensorSpec("input_ids", "int32", ("batch", "tokens")),
        TensorSpec("positions", "int32", ("batch", "tokens")),
        TensorSpec("block_tables", "int32", ("batch", "past_blocks")),
        TensorSpec("past_lens", "int32", ("batch",)),
        TensorSpec("last_index", "int32", ("batch",)),
        *(
            TensorSpec(f"kv_pool.{layer}.{part}", "float32", pool)
            for layer in range(shape.num_layers)
            for part in ("key", "value")
        ),
    )


def output_specs(shape: StepShape) -> tuple[TensorSpec, ...]:
    """Names, dtypes and symbolic shapes of the graph's outputs, in order.

    The rows of `new_kv` are ordered by layer, then key before value, then KV head.
    """
    rows = shape.num_layers * 2 * shape.num_kv_heads
    return (
        TensorSpec("logits", "float32", ("batch", shape.vocab_size)),
        TensorSpec("new_kv", "float32", (rows, "new_tokens", shape.head_dim)),
    )
