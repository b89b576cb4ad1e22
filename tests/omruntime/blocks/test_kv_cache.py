"""The pool in device memory: appended tokens and copied blocks are where the graph reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from omruntime.blocks.kv_cache import KVCache, kv_bytes_per_block
from omruntime.device import Device, DeviceTensor
from omruntime.device.cpu import CpuDevice
from omruntime.errors import BundleError, OutOfDeviceMemoryError
from omruntime.manifest import KVLayout, KVSpec, Manifest, ModelFacts
from tests.omruntime.device.backends import opened

NUM_BLOCKS, BLOCK_SIZE, LAYERS, HEADS, HEAD_DIM = 5, 4, 2, 2, 8
PLANES, SLOTS = LAYERS * 2 * HEADS, NUM_BLOCKS * BLOCK_SIZE


@pytest.fixture
def model(toy_bundle: Path) -> ModelFacts:
    facts = Manifest.read(toy_bundle).model
    return replace(facts, num_layers=LAYERS, num_kv_heads=HEADS, head_dim=HEAD_DIM)


def spec(layout: KVLayout) -> KVSpec:
    return KVSpec(layout, BLOCK_SIZE, "float32", PLANES * BLOCK_SIZE * HEAD_DIM * 4)


@pytest.fixture(params=["cpu head_major", "cpu token_major", "sim:0 token_major"])
def setting(request: pytest.FixtureRequest) -> Iterator[tuple[Device, KVLayout]]:
    name, layout = request.param.split()
    with opened(name) as device:
        yield device, KVLayout(layout)


def by_slot(device: Device, cache: KVCache) -> NDArray[np.float32]:
    """The pool as [planes, slots, head_dim], read through the graph's inputs."""
    arrays = {name: device.copy_out(window) for name, window in cache.pool_inputs().items()}
    device.synchronize()
    if list(arrays) == ["kv_pool"]:
        assert arrays["kv_pool"].shape == (SLOTS, PLANES, HEAD_DIM)
        return arrays["kv_pool"].transpose(1, 0, 2).copy()
    names = [f"kv_pool.{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
    assert list(arrays) == names
    assert all(a.shape == (HEADS, NUM_BLOCKS, BLOCK_SIZE, HEAD_DIM) for a in arrays.values())
    return np.concatenate([a.reshape(HEADS, SLOTS, HEAD_DIM) for a in arrays.values()])


def fill(device: Device, cache: KVCache, layout: KVLayout) -> NDArray[np.float32]:
    """Append distinct numbers for every slot at once; returns them as [planes, slots, head_dim]."""
    values = np.arange(PLANES * SLOTS * HEAD_DIM, dtype=np.float32).reshape(PLANES, SLOTS, -1) + 1
    append(device, cache, layout, values, np.arange(SLOTS), np.arange(SLOTS))
    return values


def append(
    device: Device,
    cache: KVCache,
    layout: KVLayout,
    values: NDArray[np.float32],
    rows: NDArray[np.int64],
    slots: NDArray[np.int64],
) -> None:
    if layout is KVLayout.TOKEN_MAJOR:
        values = np.ascontiguousarray(values.transpose(1, 0, 2))
    new = DeviceTensor(device.alloc(values.nbytes), 0, values.shape, "float32")
    device.copy_in(new, values)
    cache.append(new, rows, slots)
    device.synchronize()


def test_a_fresh_pool_holds_zeros(setting: tuple[Device, KVLayout], model: ModelFacts) -> None:
    """Masked positions are multiplied by zero, which a NaN would survive."""
    device, layout = setting
    assert not by_slot(device, KVCache(device, model, spec(layout), NUM_BLOCKS)).any()


def test_tokens_land_in_their_slots_in_every_layer(
    setting: tuple[Device, KVLayout], model: ModelFacts
) -> None:
    device, layout = setting
    cache = KVCache(device, model, spec(layout), NUM_BLOCKS)
    values = np.arange(PLANES * 4 * HEAD_DIM, dtype=np.float32).reshape(PLANES, 4, HEAD_DIM) + 1
    # Row 2 of the step is padding and goes nowhere.
    append(device, cache, layout, values, np.array([0, 1, 3]), np.array([19, 8, 1]))
    pool = by_slot(device, cache)
    np.testing.assert_array_equal(pool[:, [19, 8, 1]], values[:, [0, 1, 3]])
    assert np.count_nonzero(pool) == 3 * PLANES * HEAD_DIM


def test_block_copies_take_the_whole_block_of_every_layer(
    setting: tuple[Device, KVLayout], model: ModelFacts
) -> None:
    device, layout = setting
    cache = KVCache(device, model, spec(layout), NUM_BLOCKS)
    before = fill(device, cache, layout).reshape(PLANES, NUM_BLOCKS, BLOCK_SIZE, HEAD_DIM)
    cache.copy_blocks(())
    cache.copy_blocks(((1, 3), (4, 2)))
    after = by_slot(device, cache).reshape(before.shape)
    np.testing.assert_array_equal(after, before[:, [0, 1, 4, 1, 4]])


def test_bytes_per_block_follow_the_true_head_size(model: ModelFacts) -> None:
    """BL-01: the head size is the config's, not hidden size by heads."""
    kv = spec(KVLayout.HEAD_MAJOR)
    assert kv_bytes_per_block(model, kv) == kv.bytes_per_block
    assert kv_bytes_per_block(replace(model, head_dim=24), kv) == 3 * kv.bytes_per_block


def test_a_pool_beyond_the_memory_is_refused(model: ModelFacts) -> None:
    with pytest.raises(OutOfDeviceMemoryError, match="bytes asked"):
        KVCache(CpuDevice(1), model, spec(KVLayout.TOKEN_MAJOR), 1 << 40)


def test_positions_that_the_device_cannot_copy_are_refused(model: ModelFacts) -> None:
    odd = replace(model, head_dim=3)
    kv = spec(KVLayout.TOKEN_MAJOR)
    with opened("sim:0") as device:
        with pytest.raises(BundleError, match=r"takes 96 bytes .*copies multiples of 64"):
            KVCache(device, odd, kv, NUM_BLOCKS)
        KVCache(device, replace(odd, num_kv_heads=4), kv, NUM_BLOCKS).close()
