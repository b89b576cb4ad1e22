"""Allocation and copies: accounting, bounds, order."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from omruntime.device.simacl import SimulatedCard, UndefinedBehaviourError
from omruntime.device.simacl.memory import AddressSpace, DeviceMemory
from tests.omruntime.device.simacl.rig import D2D, D2H, H2D, H2H, OK, Rig, StaticRun

MIB = 1 << 20
HUGE_FIRST, HUGE_ONLY, NORMAL_ONLY = range(3)


def test_allocations_cost_what_the_driver_takes(rig: Rig) -> None:
    def cost(size: int, policy: int) -> int:
        before = rig.simulation.used_bytes[0]
        rig.value(rig.acl.rt.malloc(size, policy))
        return rig.simulation.used_bytes[0] - before

    assert cost(1, NORMAL_ONLY) == 64
    assert cost(32, NORMAL_ONLY) == 64
    assert cost(33, NORMAL_ONLY) == 96
    assert cost(MIB, HUGE_FIRST) == MIB + 32
    assert cost(MIB + 1, HUGE_FIRST) == 2 * MIB
    assert cost(2 * MIB, HUGE_FIRST) == 4 * MIB
    assert cost(32, HUGE_ONLY) == 2 * MIB
    assert cost(3 * MIB, NORMAL_ONLY) == 3 * MIB + 32
    assert cost(MIB + 1, 99) == MIB + 64  # an unknown policy: huge pages from 2 MiB on
    assert cost(2 * MIB, 99) == 4 * MIB
    before = rig.simulation.used_bytes[0]
    rig.value(rig.acl.rt.malloc_align32(33, NORMAL_ONLY))
    assert rig.simulation.used_bytes[0] - before == 64


def test_memory_runs_out_and_comes_back(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SimulatedCard(memory_bytes=4096))
    assert rig.acl.rt.malloc(0, 0) == (0, 100000)
    assert rig.acl.rt.malloc(4096, 0) == (0, 207001)
    block = rig.malloc(4096 - 32)
    assert rig.acl.rt.malloc(1, 0) == (0, 207001)
    assert rig.acl.rt.get_mem_info(0) == (0, 4096, OK)
    assert rig.acl.rt.get_mem_info(1) == (0, 4096, OK)  # 310P answers for HBM with DDR
    assert rig.acl.rt.get_mem_info(7) == (0, 0, OK)
    assert rig.acl.rt.free(block) == OK
    assert rig.acl.rt.get_mem_info(0) == (4096, 4096, OK)


def test_fresh_memory_is_poison(rig: Rig) -> None:
    content = rig.read(rig.malloc(65), 65)
    assert np.isnan(np.frombuffer(content[:64], np.float16)).all()
    assert np.isnan(np.frombuffer(content[:64], np.float32)).all()
    pinned = rig.acl.util.ptr_to_bytes(rig.value(rig.acl.rt.malloc_host(64)), 64)
    assert np.isnan(np.frombuffer(pinned, np.float16)).all()


def test_bases_are_aligned(rig: Rig) -> None:
    for size in (1, 63, 4097):
        assert rig.malloc(size) % 64 == 0
        assert rig.value(rig.acl.rt.malloc_host(size)) % 64 == 0


def test_wrong_frees_are_refused(rig: Rig) -> None:
    device, host = rig.malloc(64), rig.value(rig.acl.rt.malloc_host(64))
    assert rig.acl.rt.free(0) == 100000
    assert rig.acl.rt.free_host(0) == 100000
    assert rig.acl.rt.free(host) == 107000
    assert rig.acl.rt.free_host(device) == 107000
    assert rig.acl.rt.free(device + 32) == 107000
    assert rig.acl.rt.free(12345) == 107000
    assert rig.acl.rt.free(device) == OK
    assert rig.acl.rt.free(device) == 107000
    assert rig.acl.rt.malloc_host(0) == (0, 100000)


def test_freed_memory_is_not_read_again(rig: Rig) -> None:
    block, host = rig.malloc(64), rig.value(rig.acl.rt.malloc_host(64))
    assert rig.acl.rt.free(block) == OK
    with pytest.raises(UndefinedBehaviourError, match="not allocated"):
        rig.acl.rt.memcpy(host, 64, block, 64, D2H)
    assert rig.acl.rt.free_host(host) == OK
    with pytest.raises(UndefinedBehaviourError, match="is unknown"):
        rig.acl.rt.memcpy(rig.malloc(64), 64, host, 64, H2D)


def test_wrong_copy_arguments_are_refused(rig: Rig) -> None:
    device, host = rig.malloc(64), rig.value(rig.acl.rt.malloc_host(64))
    memcpy = rig.acl.rt.memcpy
    assert memcpy(0, 64, host, 64, H2D) == 100000
    assert memcpy(device, 64, 0, 64, H2D) == 100000
    for kind in (-1, 6, 7):
        assert memcpy(device, 64, host, 64, kind) == 100000
    assert memcpy(device, 63, host, 64, H2D) == 107000
    assert memcpy(device, 64, host, 0, H2D) == 107000
    assert memcpy(device, 64, device, 64, D2D) == OK
    assert memcpy(device, 64, host, 64, 4) == OK


def test_a_copy_past_the_allocation_is_caught(rig: Rig) -> None:
    device, host = rig.malloc(64), rig.value(rig.acl.rt.malloc_host(128))
    with pytest.raises(UndefinedBehaviourError, match="end by 1"):
        rig.acl.rt.memcpy(device, 65, host, 65, H2D)
    with pytest.raises(UndefinedBehaviourError, match="end by 64"):
        rig.acl.rt.memcpy(host, 128, device, 128, D2H)
    with pytest.raises(UndefinedBehaviourError, match="end by 2"):
        rig.acl.rt.memcpy(device, 64, rig.acl.util.bytes_to_ptr(KEPT), len(KEPT) + 2, H2D)


def test_a_kind_that_contradicts_the_addresses_is_caught(rig: Rig) -> None:
    device, host = rig.malloc(64), rig.value(rig.acl.rt.malloc_host(64))
    for kind in (H2H, D2H, D2D):
        with pytest.raises(UndefinedBehaviourError, match="contradicts"):
            rig.acl.rt.memcpy(device, 64, host, 64, kind)


def test_overlapping_copies_are_caught(rig: Rig) -> None:
    device, host = rig.device_bytes(bytes(256)), rig.value(rig.acl.rt.malloc_host(256))
    for block, kind in ((device, D2D), (host, H2H)):
        with pytest.raises(UndefinedBehaviourError, match="source and target overlap"):
            rig.acl.rt.memcpy(block, 128, block + 64, 128, kind)
    with pytest.raises(UndefinedBehaviourError, match="source and target overlap"):
        rig.acl.rt.memcpy_async(device + 64, 128, device, 128, D2D, rig.stream)
    assert rig.acl.rt.memcpy(device, 64, device + 64, 64, D2D) == OK


def test_memcpy_waits_for_no_stream(rig: Rig) -> None:
    device = rig.malloc(64)
    source, _ = rig.pinned(b"x" * 64)
    assert rig.acl.rt.memcpy_async(device, 64, source, 64, H2D, rig.stream) == OK
    for target, kind in ((source, D2H), (rig.malloc(64), D2D)):
        with pytest.raises(UndefinedBehaviourError, match="queued on the same memory"):
            rig.acl.rt.memcpy(target, 64, device, 64, kind)
    with pytest.raises(UndefinedBehaviourError, match="queued on the same memory"):
        rig.acl.rt.memset(device, 64, 0, 64)
    assert rig.synchronize() == OK
    assert rig.read(device, 64) == b"x" * 64


def test_asynchronous_copies_need_alignment(rig: Rig) -> None:
    device, host = rig.malloc(256), rig.value(rig.acl.rt.malloc_host(256))
    for target, source in ((device + 32, host), (device, host + 32)):
        with pytest.raises(UndefinedBehaviourError, match="aligned to 64"):
            rig.acl.rt.memcpy_async(target, 64, source, 64, H2D, rig.stream)
    assert rig.acl.rt.memcpy_async(device + 64, 3, host + 128, 3, H2D, rig.stream) == OK


def test_asynchronous_copies_within_the_host_are_refused(rig: Rig) -> None:
    first, second = (rig.value(rig.acl.rt.malloc_host(64)) for _ in range(2))
    assert rig.acl.rt.memcpy_async(first, 64, second, 64, H2H, rig.stream) == 207000


def test_pageable_memory_is_copied_at_once_and_flagged_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    array = np.arange(64 + 64, dtype=np.uint8)
    aligned = array[-array.ctypes.data % 64 :][:64]
    with pytest.warns(DeprecationWarning, match="deprecated"):
        source = rig.acl.util.numpy_to_ptr(aligned)
    device = rig.malloc(64)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert rig.acl.rt.memcpy_async(device, 64, source, 64, H2D, rig.stream) == OK
    assert rig.read(device, 64) == aligned.tobytes()
    assert rig.simulation.num_pageable_copies == 2
    assert len([r for r in caplog.records if "pageable" in r.message]) == 1


def test_a_pageable_copy_runs_behind_what_is_queued(rig: Rig) -> None:
    array = np.ones(64 + 64, np.uint8)[0:]
    aligned = array[-array.ctypes.data % 64 :][:64]
    with pytest.warns(DeprecationWarning, match="deprecated"):
        source = rig.acl.util.numpy_to_ptr(aligned)
    device = rig.malloc(64)
    assert rig.acl.rt.memset_async(device, 64, 2, 64, rig.stream) == OK
    assert rig.acl.rt.memcpy_async(device, 64, source, 32, H2D, rig.stream) == OK
    assert rig.read(device, 64) == b"\1" * 32 + b"\2" * 32


def test_the_host_side_must_not_change_before_the_synchronize(rig: Rig) -> None:
    device = rig.malloc(64)
    source, array = rig.pinned(b"x" * 64)
    assert rig.acl.rt.memcpy_async(device, 64, source, 64, H2D, rig.stream) == OK
    array[0] = 0
    with pytest.raises(UndefinedBehaviourError, match="changed before the copy ran"):
        rig.synchronize()
    assert rig.acl.rt.memcpy_async(source, 64, device, 64, D2H, rig.stream) == OK
    array[0] = 0
    with pytest.raises(UndefinedBehaviourError, match="changed before the copy ran"):
        rig.synchronize()


def test_buffered_copies_let_the_source_go(rig: Rig) -> None:
    device = rig.malloc(64)
    source, array = rig.pinned(b"x" * 64)
    assert rig.acl.rt.memcpy_async(device, 64, source, 64, 5, rig.stream) == OK
    array[:] = 0
    assert rig.acl.rt.free_host(source) == OK
    assert rig.synchronize() == OK
    assert rig.read(device, 64) == b"x" * 64


def test_freeing_what_a_queued_copy_uses_is_caught(rig: Rig) -> None:
    device, host = rig.malloc(64), rig.value(rig.acl.rt.malloc_host(64))
    assert rig.acl.rt.memcpy_async(device, 64, host, 64, H2D, rig.stream) == OK
    with pytest.raises(UndefinedBehaviourError, match="free of memory that a copy"):
        rig.acl.rt.free(device)
    with pytest.raises(UndefinedBehaviourError, match="free_host of memory that a copy"):
        rig.acl.rt.free_host(host)
    assert rig.synchronize() == OK
    assert rig.acl.rt.free(device) == OK


def test_memset_fills_within_its_bound(rig: Rig) -> None:
    device = rig.malloc(64)
    assert rig.acl.rt.memset(device, 8, 1, 9) == 107000
    assert rig.acl.rt.memset(0, 8, 1, 8) == 100000
    assert rig.acl.rt.memset(device, 64, 257, 64) == OK
    assert rig.acl.rt.memset_async(device, 64, 2, 32, rig.stream) == OK
    assert rig.synchronize() == OK
    assert rig.read(device, 64) == b"\2" * 32 + b"\1" * 32
    with pytest.raises(UndefinedBehaviourError, match="acl did not allocate"):
        rig.acl.rt.memset(rig.acl.util.bytes_to_ptr(KEPT), 1, 0, 1)
    host = rig.value(rig.acl.rt.malloc_host(64))
    with pytest.raises(UndefinedBehaviourError, match="memset_async of host memory"):
        rig.acl.rt.memset_async(host, 64, 0, 64, rig.stream)


KEPT = b"kept alive by the module"


def test_memory_of_the_loader_is_not_touched(static: StaticRun) -> None:
    weights = static.malloc(64) - 4096  # the loader's block lies in front of it
    assert weights % 64 == 0
    loaded = static.load(static.static_om())
    assert loaded == 2
    after = static.malloc(64)
    found = [a for a in range(after - 16384, after, 4096) if is_the_loaders(static, a)]
    assert len(found) == 2
    assert [static.acl.rt.free(address) for address in found] == [107000, 107000]


def is_the_loaders(rig: Rig, address: int) -> bool:
    try:
        rig.acl.rt.memset(address, 64, 0, 64)
    except UndefinedBehaviourError as error:
        return "is memory of the loader" in str(error)
    return False


def test_copies_between_devices_need_peer_access(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SimulatedCard(num_devices=2))
    first = rig.malloc(64)
    assert rig.acl.rt.set_device(1) == OK
    assert rig.acl.rt.memcpy(rig.malloc(64), 64, first, 64, D2D) == 107000


def test_overwritten_weights_are_noticed_at_the_next_run(static: StaticRun) -> None:
    work, weight = static.malloc(4096), static.malloc(1024)
    load = static.acl.mdl.load_from_file_with_mem
    model = static.value(load(static.static_om(), work, 4096, weight, 1024))
    assert static.acl.mdl.execute(model, static.inputs, static.outputs) == OK
    assert static.acl.rt.memset(weight, 1024, 0, 64) == OK
    with pytest.raises(UndefinedBehaviourError, match="weights were destroyed by a memset"):
        static.acl.mdl.execute(model, static.inputs, static.outputs)


@pytest.mark.parametrize("nbytes", [64, 64 << 20])
def test_no_chip_claims_an_address_of_the_host(nbytes: int) -> None:
    """Small arrays lie on the heap, large ones where the kernel maps; both have high addresses."""
    devices = [DeviceMemory(device_id, 1 << 30) for device_id in range(100)]
    address = np.empty(nbytes, np.uint8).ctypes.data
    assert AddressSpace(devices).device_of(address) is None
    first = [device.allocate(64, 64) for device in devices]
    assert [AddressSpace(devices).device_of(address) for address in first] == devices
