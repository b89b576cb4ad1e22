"""MemoryBudget: what weights, work memory and KV blocks take of a device's memory.

Owns the estimate before anything is built; at load the runtime budgets again with the OM's own
figures. Estimated are

    work memory   of the largest bucket: past keys and values as gathered (one layer at a time,
                  on 310B all layers at once), attention scores twice, hidden states and the
                  widest intermediate four times, logits in float32
    inputs and outputs   of the largest bucket: ids, positions, tables, logits, new keys and
                  values; twice, as one set is on the host's side of the copy

Source: hicann/ge docs/zh/user_guides/atc_shape_configuration_guide.md (work memory and outputs are
sized by the largest gear); hicann/ge parser/parser/onnx (the element count of a tensor is held in
32 bits).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc_pipeline.plan.model_sizes import ModelSizes
from atc_pipeline.soc import ASCEND_310B, Soc
from omruntime.buckets import Bucket
from omruntime.errors import ConfigError

MAX_POOL_ELEMENTS = 2**31 - 1
MIB, GIB = 1 << 20, 1 << 30
# Driver, runtime and compiled operators take some; CANN publishes no figure.
DEFAULT_RESERVE_SHARE = 0.05
_FLOAT16_BYTES, _INT32_BYTES, _FLOAT32_BYTES = 2, 4, 4


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the budget."""

    name: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """What fits.

    Attributes:
        items: All but the KV pool.
        num_blocks: Of the recommended pool, the null block included.
        limited_by: What keeps the pool from being larger.
    """

    memory_bytes: int
    items: tuple[Item, ...]
    block_bytes: int
    block_size: int
    num_blocks: int
    limited_by: str

    @property
    def pool_bytes(self) -> int:
        """What the KV pool takes."""
        return self.num_blocks * self.block_bytes

    @property
    def free_bytes(self) -> int:
        """What is left after everything."""
        return self.memory_bytes - sum(i.num_bytes for i in self.items) - self.pool_bytes

    def sequences_of(self, length: int) -> int:
        """How many sequences of so many tokens the pool holds at once."""
        return (self.num_blocks - 1) // max(1, -(-length // self.block_size))


@dataclass(frozen=True, slots=True)
class BudgetNeeds:
    """What the budget is made for.

    Attributes:
        programs: The buckets of each OM.
        weight_copies: How many OMs hold weights of their own.
    """

    memory_bytes: int
    reserve_bytes: int
    programs: Sequence[Sequence[Bucket]]
    weight_copies: int
    block_size: int
    max_num_seqs: int
    max_model_len: int


def make_budget(sizes: ModelSizes, soc: Soc, needs: BudgetNeeds) -> MemoryBudget:
    """Itemise the memory and recommend a pool.

    Raises:
        ConfigError: The weights, or the pool for one longest sequence, do not fit; the message
            says by how much.
    """
    items = _items(sizes, soc, needs)
    left = needs.memory_bytes - sum(item.num_bytes for item in items)
    block_bytes = sizes.token_bytes * needs.block_size
    blocks_each = -(-needs.max_model_len // needs.block_size)
    if left < 0:
        remedies = ["a smaller model", "fewer or smaller buckets"]
        remedies += ["no --separate-weights"] if needs.weight_copies > 1 else []
        remedies += ["a smaller --reserve"] if needs.reserve_bytes >= -left else []
        raise ConfigError(
            f"the model does not fit: {_listed(items)} are {_mib(-left)} more than the memory of "
            f"{_mib(needs.memory_bytes)}; take {' or '.join(remedies)}"
        )
    num_blocks, limited_by = min(
        (left // block_bytes, "memory"),
        (
            MAX_POOL_ELEMENTS // (sizes.token_elements * needs.block_size),
            f"the compiler's limit of {MAX_POOL_ELEMENTS} elements a tensor",
        ),
        (
            needs.max_num_seqs * blocks_each + 1,
            "need: max_num_seqs sequences of max_model_len hold no more",
        ),
    )
    if num_blocks < blocks_each + 1:
        longest = max(0, num_blocks - 1) * needs.block_size
        missing = _mib((blocks_each + 1 - num_blocks) * block_bytes)
        remedy = (
            f"lower --max-model-len to {longest} or less"
            if longest
            else "take a smaller model, fewer or smaller buckets, or a smaller --reserve"
        )
        raise ConfigError(
            f"one sequence of {needs.max_model_len} tokens wants {blocks_each + 1} KV blocks of "
            f"{_mib(block_bytes)}, there is room for {num_blocks} ({limited_by}), which is "
            f"{missing} too little; {remedy}"
        )
    return MemoryBudget(
        needs.memory_bytes, items, block_bytes, needs.block_size, num_blocks, limited_by
    )


def _items(sizes: ModelSizes, soc: Soc, needs: BudgetNeeds) -> tuple[Item, ...]:
    work = [
        max(_work_bytes(sizes, soc, bucket, needs.block_size) for bucket in program)
        for program in needs.programs
    ]
    io = [max(_io_bytes(sizes, bucket) for bucket in program) for program in needs.programs]
    copies = f" x {needs.weight_copies}" if needs.weight_copies > 1 else ""
    return (
        Item(f"weights{copies}", sizes.device_weight_bytes * needs.weight_copies),
        Item("work memory", sum(work)),
        Item("inputs and outputs", 2 * sum(io)),
        Item("reserve", needs.reserve_bytes),
    )


def _work_bytes(sizes: ModelSizes, soc: Soc, bucket: Bucket, block_size: int) -> int:
    new, past = bucket.batch * bucket.tokens, bucket.past_blocks * block_size
    layers_at_once = sizes.num_layers if soc.profile == ASCEND_310B else 1
    layer_token = sizes.token_bytes // sizes.num_layers
    gathered = bucket.batch * past * layer_token * layers_at_once
    scores = 2 * sizes.num_heads * new * (past + bucket.tokens) * _FLOAT16_BYTES
    hidden = 4 * new * (sizes.hidden_size + sizes.intermediate_size) * _FLOAT16_BYTES
    logits = bucket.batch * sizes.vocab_size * _FLOAT32_BYTES
    return gathered + scores + hidden + logits


def _io_bytes(sizes: ModelSizes, bucket: Bucket) -> int:
    new = bucket.batch * bucket.tokens
    ids = (2 * new + bucket.batch * (bucket.past_blocks + 2)) * _INT32_BYTES
    logits = bucket.batch * sizes.vocab_size * _FLOAT32_BYTES
    return ids + logits + new * sizes.token_bytes


def _listed(items: Sequence[Item]) -> str:
    return ", ".join(f"{item.name} {_mib(item.num_bytes)}" for item in items)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:,.1f} MiB"
