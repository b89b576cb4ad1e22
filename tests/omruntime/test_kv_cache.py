"""The pool in device memory: appended tokens and copied blocks are where the graph reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from omruntime.device import DeviceTensor
from omruntime.device.cpu import CpuDevice, view
from omruntime.errors import BundleError
from omruntime.kv_cache import KVCache, kv_bytes_per_block
from omruntime.manifest import KVLayout, KVSpec, Manifest, ModelFacts

NUM_BLOCKS, BLOCK_SIZE = 5, 4


@pytest.fixture
def model(toy_bundle: Path) -> ModelFacts:
    facts = Manifest.read(toy_bundle).model
    return replace(facts, num_layers=2, num_kv_heads=3, head_dim=2)


@pytest.fixture
def kv() -> KVSpec:
    return KVSpec(KVLayout.HEAD_MAJOR, BLOCK_SIZE, "float32", 2 * 2 * 3 * BLOCK_SIZE * 2 * 4)


def test_tokens_land_in_their_slots_in_every_layer(model: ModelFacts, kv: KVSpec) -> None:
    device = CpuDevice(1)
    cache = KVCache(device, model, kv, NUM_BLOCKS)
    new = DeviceTensor(device.alloc(12 * 4 * 2 * 4), 0, (12, 4, 2), "float32")
    values = np.arange(96, dtype=np.float32).reshape(12, 4, 2) + 1
    device.copy_in(new, values)
    # Row 2 of the step is padding and goes nowhere.
    cache.append(new, np.array([0, 1, 3]), np.array([4 * 4 + 3, 2 * 4, 1]))
    planes = values.reshape(2, 2, 3, 4, 2)
    written = 0
    for layer in range(2):
        for j, part in enumerate(("key", "value")):
            pool = view(cache.pool_inputs()[f"kv_pool.{layer}.{part}"])
            assert pool.shape == (3, NUM_BLOCKS, BLOCK_SIZE, 2)
            np.testing.assert_array_equal(pool[:, 4, 3], planes[layer, j, :, 0])
            np.testing.assert_array_equal(pool[:, 2, 0], planes[layer, j, :, 1])
            np.testing.assert_array_equal(pool[:, 0, 1], planes[layer, j, :, 3])
            written += np.count_nonzero(pool)
    assert written == 3 * 12 * 2


def test_block_copies_take_the_whole_block_of_every_layer(model: ModelFacts, kv: KVSpec) -> None:
    cache = KVCache(CpuDevice(1), model, kv, NUM_BLOCKS)
    pools = [view(tensor) for tensor in cache.pool_inputs().values()]
    for i, pool in enumerate(pools):
        pool[...] = np.arange(pool.size).reshape(pool.shape) + 1000 * i
    before = [pool.copy() for pool in pools]
    cache.copy_blocks(((1, 3), (4, 2)))
    for pool, old in zip(pools, before, strict=True):
        np.testing.assert_array_equal(pool, old[:, [0, 1, 4, 1, 4]])


def test_bytes_per_block_follow_the_true_head_size(model: ModelFacts, kv: KVSpec) -> None:
    """BL-01: the head size is the config's, not hidden size by heads."""
    assert kv_bytes_per_block(model, kv) == kv.bytes_per_block
    assert kv_bytes_per_block(replace(model, head_dim=24), kv) == 12 * kv.bytes_per_block


def test_a_layout_that_is_not_built_in_is_refused(model: ModelFacts, kv: KVSpec) -> None:
    with pytest.raises(BundleError, match="token_major"):
        KVCache(CpuDevice(1), model, replace(kv, layout=KVLayout.TOKEN_MAJOR), NUM_BLOCKS)
