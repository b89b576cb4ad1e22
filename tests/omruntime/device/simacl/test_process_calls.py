"""init, finalize, error texts, leaks."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from omruntime.device.simacl import SimulatedCard, UndefinedBehaviourError
from tests.omruntime.device.simacl.rig import LARGE_BYTES, OK, Rig, StaticRun


def test_a_second_init_and_finalize_are_told(rig: Rig) -> None:
    acl = rig.acl
    assert acl.init() == 100002
    assert acl.init() == 100002
    assert acl.rt.destroy_stream(rig.stream) == OK
    assert acl.rt.reset_device(0) == OK
    assert acl.finalize_reference() == (2, OK)
    assert acl.finalize() == OK
    assert acl.finalize() == 100037
    assert acl.finalize_reference() == (0, 100037)
    assert rig.simulation.leaks == ()
    assert acl.init() == OK  # cycles are allowed
    assert acl.finalize_reference() == (0, OK)


def test_calls_after_finalize_are_refused_as_before_init(rig: Rig) -> None:
    assert rig.acl.finalize() == OK
    assert rig.acl.mdl.load_from_file("x.om") == (0, 145001)
    with pytest.raises(UndefinedBehaviourError, match=r"set_device after acl\.finalize"):
        rig.acl.rt.set_device(0)


def test_a_config_that_is_no_json_is_refused(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "acl.json").write_text("{")
    assert rig.acl.init(str(tmp_path / "acl.json")) == 100000


def test_error_texts_belong_to_the_thread_and_are_cleared_by_reading(rig: Rig) -> None:
    assert rig.acl.get_recent_err_msg() is None
    assert rig.acl.rt.free(0) == 100000
    elsewhere: list[str | None] = []
    thread = threading.Thread(target=lambda: elsewhere.append(rig.acl.get_recent_err_msg()))
    thread.start()
    thread.join()
    assert elsewhere == [None]
    assert "free of a null pointer" in rig.acl.get_recent_err_msg()
    assert rig.acl.get_recent_err_msg() is None


def test_a_reset_too_many_is_an_error(rig: Rig) -> None:
    assert rig.acl.rt.set_device(0) == OK
    assert rig.acl.rt.destroy_stream(rig.stream) == OK
    assert rig.acl.rt.reset_device(0) == OK
    assert rig.acl.rt.get_device() == (0, OK)
    assert rig.acl.rt.reset_device(0) == OK
    assert rig.acl.rt.reset_device(0) == 507007
    with pytest.raises(UndefinedBehaviourError, match="current context"):
        rig.acl.rt.get_device()


def test_what_is_alive_at_the_end_is_reported(
    static: StaticRun, caplog: pytest.LogCaptureFixture
) -> None:
    static.pinned(bytes(64))
    static.value(static.acl.rt.create_event())
    static.value(static.acl.rt.create_context(0))
    with caplog.at_level(logging.CRITICAL):
        assert static.acl.rt.reset_device(0) == OK
        assert static.acl.finalize() == OK
    leaks = "\n".join(static.simulation.leaks)
    for what in (
        "model 1:", "stream 0x", "event 0x", "context 0x", f"{LARGE_BYTES} bytes of device memory",
        "2 Dataset", "2 DataBuffer", "64 bytes of pinned host memory",
    ):  # fmt: skip
        assert what in leaks, what


def test_a_device_that_was_never_reset_is_a_leak(rig: Rig) -> None:
    assert rig.acl.finalize() == OK
    assert "device 0 was not reset" in rig.simulation.leaks[0]


def test_a_force_reset_ignores_the_count(rig: Rig) -> None:
    assert rig.acl.rt.set_device(0) == OK
    assert rig.acl.rt.destroy_stream(rig.stream) == OK
    assert rig.acl.rt.reset_device_force(0) == OK
    assert rig.acl.rt.reset_device_force(0) == 507007
    assert rig.acl.rt.reset_device(0) == 507007


def test_a_reset_with_queued_work_is_caught(static: StaticRun) -> None:
    assert static.launch() == OK
    with pytest.raises(UndefinedBehaviourError, match="while work is queued"):
        static.acl.rt.reset_device(0)


def test_a_duo_has_two_devices_with_their_own_memory(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SimulatedCard(num_devices=2, memory_bytes=1 << 20))
    assert rig.acl.rt.get_device_count() == (2, OK)
    rig.malloc(4096)
    free_on_0 = rig.acl.rt.get_mem_info(0)[0]
    assert rig.acl.rt.set_device(1) == OK
    assert rig.acl.rt.get_mem_info(0) == (1 << 20, 1 << 20, OK)
    assert free_on_0 == (1 << 20) - 4096 - 32
    assert rig.acl.rt.set_device(2) == 107001


def test_what_is_alive_on_a_device_that_was_never_set_is_a_leak(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SimulatedCard(num_devices=2))
    rig.value(rig.acl.rt.create_context(1))
    rig.malloc(64)
    assert rig.acl.finalize() == OK
    leaks = " ".join(rig.simulation.leaks)
    assert "64 bytes of device memory" in leaks
    assert leaks.count("context") == 1
