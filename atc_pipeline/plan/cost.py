"""CostModel: how long one run of a bucket is expected to take.

A roofline: the time is what the matrix units need at their peak, or what device memory needs at
its peak, whichever is longer. Counted are

    flops  2 x layer weights x new tokens, 2 x head weights x rows, and attention's two products
    bytes  all weights once; each past key and value three times (read from the pool, written
           and read as gathered past); attention scores in float16, four passes; new keys and
           values; logits in float32

Nothing here was measured: the peaks are those of the chip file, so a time is a lower bound. The
planner compares buckets with each other, where a common factor does not matter; at run time the
engine measures every bucket itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from atc_pipeline.plan.model_sizes import ModelSizes
from atc_pipeline.soc import Soc
from omruntime.buckets import Bucket

_FLOAT16_BYTES, _FLOAT32_BYTES = 2, 4
# Read from the pool, written in attention's order, read there.
_PAST_PASSES = 3
# Written by the first product, read and written by the softmax, read by the second product.
_SCORE_PASSES = 4


@dataclass(frozen=True, slots=True)
class CostModel:
    """The cost of buckets of one model on one chip."""

    soc: Soc
    sizes: ModelSizes
    block_size: int

    def seconds(self, bucket: Bucket) -> float:
        """The least time of one run."""
        return self.shape_seconds(bucket.batch, bucket.tokens, bucket.past_blocks)

    def shape_seconds(self, batch: int, tokens: int, past_blocks: int) -> float:
        """The same of a shape that need not be a bucket."""
        past = past_blocks * self.block_size
        compute_s = self._flops(batch, tokens, past) / self.soc.float16_flops_per_s
        memory_s = self._bytes(batch, tokens, past) / self.soc.memory_bytes_per_s
        return max(compute_s, memory_s)

    def _flops(self, batch: int, tokens: int, past: int) -> int:
        sizes, new = self.sizes, batch * tokens
        width = sizes.num_layers * sizes.num_heads * sizes.head_dim
        attention = 4 * width * new * (past + tokens)
        return 2 * sizes.layer_parameters * new + 2 * sizes.head_parameters * batch + attention

    def _bytes(self, batch: int, tokens: int, past: int) -> int:
        sizes, new = self.sizes, batch * tokens
        scores = sizes.num_layers * sizes.num_heads * new * (past + tokens) * _FLOAT16_BYTES
        return (
            sizes.step_weight_bytes
            + _PAST_PASSES * batch * past * sizes.token_bytes
            + _SCORE_PASSES * scores
            + new * sizes.token_bytes
            + batch * sizes.vocab_size * _FLOAT32_BYTES
        )
