"""Addresses of Python objects, callbacks, and who holds the GIL."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from omruntime.device.simacl import Delays, UndefinedBehaviourError
from omruntime.device.simacl.card import pause
from tests.omruntime.device.simacl.rig import H2D, LARGE_BYTES, OK, Rig


def test_bytes_must_outlive_their_use(rig: Rig) -> None:
    content = bytes(range(64))
    address, device = rig.acl.util.bytes_to_ptr(content), rig.malloc(64)
    assert rig.acl.rt.memcpy(device, 64, address, 64, H2D) == OK
    assert rig.acl.util.ptr_to_bytes(address, 4) == b"\0\1\2\3"
    del content
    with pytest.raises(UndefinedBehaviourError, match="is gone"):
        rig.acl.rt.memcpy(device, 64, address, 64, H2D)
    with pytest.raises(ValueError, match="wants bytes"):
        rig.acl.util.bytes_to_ptr(bytearray(4))


@pytest.mark.filterwarnings("ignore:acl.util:DeprecationWarning")
def test_arrays_must_outlive_their_use(rig: Rig) -> None:
    array = np.arange(32, dtype=np.float16)
    address, device = rig.acl.util.numpy_to_ptr(array[:]), rig.malloc(64)
    with pytest.raises(UndefinedBehaviourError, match="is gone"):
        rig.acl.rt.memcpy(device, 64, address, 64, H2D)
    address = rig.acl.util.numpy_to_ptr(array)
    assert rig.acl.rt.memcpy(device, 64, address, 64, H2D) == OK


@pytest.mark.filterwarnings("ignore:acl.util:DeprecationWarning")
def test_arrays_must_not_be_resized_before_their_use(rig: Rig) -> None:
    array = np.zeros(64, np.uint8)
    address, device = rig.acl.util.numpy_to_ptr(array), rig.malloc(64)
    array.resize(1 << 20, refcheck=False)
    with pytest.raises(UndefinedBehaviourError, match="resized in place"):
        rig.acl.rt.memcpy(device, 64, address, 64, H2D)


def test_the_numpy_helpers_warn(rig: Rig) -> None:
    array = np.zeros((4, 4))
    with pytest.warns(DeprecationWarning, match="numpy_to_ptr is deprecated"):
        rig.acl.util.numpy_to_ptr(array)
    with (
        pytest.warns(DeprecationWarning, match="deprecated"),
        pytest.raises(UndefinedBehaviourError, match="discontiguous"),
    ):
        rig.acl.util.numpy_to_ptr(array[:, 1:])
    with pytest.warns(DeprecationWarning, match="deprecated"):
        address, copied = rig.acl.util.numpy_contiguous_to_ptr(array[:, 1:])
    assert address == copied.ctypes.data
    assert copied.shape == (4, 3)


@pytest.mark.filterwarnings("ignore:acl.util:DeprecationWarning")
def test_device_memory_is_not_read_from_the_host(rig: Rig) -> None:
    device, host = rig.malloc(64), rig.value(rig.acl.rt.malloc_host(64))
    with pytest.raises(UndefinedBehaviourError, match="the host cannot read it"):
        rig.acl.util.ptr_to_numpy(device, (16,), 11)
    with pytest.raises(UndefinedBehaviourError, match="the host cannot read it"):
        rig.acl.util.ptr_to_bytes(device, 64)
    array = rig.acl.util.ptr_to_numpy(host, (16,), 11)
    array[:] = 2.0
    assert rig.acl.util.ptr_to_bytes(host, 4) == np.float32(2).tobytes()


def test_reports_need_a_subscription_and_a_timeout(rig: Rig) -> None:
    rt = rig.acl.rt
    for bad in (0, -2):
        assert rt.process_report(bad) == 100000
    assert rt.process_report(1) == 107012
    assert rt.launch_callback(print, None, 0, rig.stream) == 107012
    me = threading.get_ident()
    assert rt.subscribe_report(me, rig.stream) == OK
    assert rt.unsubscribe_report(me + 1, rig.stream) == 107012
    assert rt.process_report(1) == 507012
    calls: list[object] = []
    assert rt.launch_callback(calls.append, "data", 0, rig.stream) == OK
    assert rig.synchronize() == OK
    assert calls == []
    assert rt.process_report(1000) == OK
    assert calls == ["data"]
    assert rt.unsubscribe_report(me, rig.stream) == OK
    assert rt.process_report(1) == 107012


def test_a_blocking_callback_runs_in_the_other_thread(rig: Rig) -> None:
    ready, ran_in = threading.Event(), []

    def serve() -> None:
        ready.wait(10)
        rig.acl.rt.process_report(10_000)

    thread = threading.Thread(target=serve)
    thread.start()
    assert rig.acl.rt.subscribe_report(thread.ident, rig.stream) == OK
    code = rig.acl.rt.launch_callback(
        lambda _: ran_in.append(threading.get_ident()), None, 1, rig.stream
    )
    assert code == OK
    ready.set()
    assert rig.synchronize() == OK
    assert ran_in == [thread.ident]
    thread.join()


def test_a_blocking_callback_to_the_waiting_thread_is_caught(rig: Rig) -> None:
    assert rig.acl.rt.subscribe_report(threading.get_ident(), rig.stream) == OK
    assert rig.acl.rt.launch_callback(print, None, 1, rig.stream) == OK
    with pytest.raises(UndefinedBehaviourError, match="deadlock"):
        rig.synchronize()


MUST_NOT_BE_IN_CALLBACKS = (
    *("rt.malloc", "rt.malloc_align32", "rt.malloc_cached", "rt.malloc_host"),
    *("rt.create_context", "rt.create_stream", "rt.create_stream_with_config"),
    *("rt.create_event", "rt.create_event_with_flag"),
    *("rt.memcpy", "rt.memcpy_async", "rt.memset", "rt.memset_async"),
    *("rt.record_event", "rt.reset_event", "rt.stream_wait_event", "rt.launch_callback"),
    *("rt.synchronize_stream", "rt.synchronize_stream_with_timeout", "rt.synchronize_device"),
    *("rt.synchronize_event", "rt.synchronize_event_with_timeout", "rt.process_report"),
    *("mdl.load_from_file", "mdl.load_from_mem", "mdl.load_with_config"),
    *("mdl.load_from_file_with_mem", "mdl.load_from_mem_with_mem"),
    *("mdl.execute", "mdl.execute_async", "mdl.set_input_dynamic_dims"),
)


def test_callbacks_must_not_allocate_submit_or_wait(rig: Rig) -> None:
    caught: list[str] = []

    def callback(_: object) -> None:
        for name in MUST_NOT_BE_IN_CALLBACKS:
            with pytest.raises(UndefinedBehaviourError, match=f"acl.{name} inside of a callback"):
                rig.call(name)
            caught.append(name)

    assert rig.acl.rt.subscribe_report(threading.get_ident(), rig.stream) == OK
    assert rig.acl.rt.launch_callback(callback, None, 0, rig.stream) == OK
    assert rig.synchronize() == OK
    assert rig.acl.rt.process_report(1000) == OK
    assert caught == [*MUST_NOT_BE_IN_CALLBACKS]
    assert rig.acl.rt.malloc(64, 0)[1] == OK  # allowed again


def another_thread_runs_during(call: Callable[[], object]) -> bool:
    """Whether another Python thread gets to run while a call takes place."""
    go, ran = threading.Lock(), threading.Event()
    # A bare lock: to release it never waits, so the caller cannot let go of the GIL by it.
    go.acquire()

    def run() -> None:
        with go:
            ran.set()

    thread = threading.Thread(target=run)
    interval = sys.getswitchinterval()
    # The thread goes on when the call lets go of the GIL, and not by a switch before or after. It
    # asks for the GIL from its first moment on, so the interval is set before it starts.
    sys.setswitchinterval(10.0)
    try:
        thread.start()
        go.release()
        call()
        return ran.is_set()
    finally:
        sys.setswitchinterval(interval)
        thread.join()


def test_a_pause_holds_or_releases_the_gil() -> None:
    assert not another_thread_runs_during(lambda: pause(0.05, holds_gil=True))
    assert another_thread_runs_during(lambda: pause(1.0, holds_gil=False))


def test_each_call_pauses_as_the_module_would(tmp_path: Path) -> None:
    passed: list[tuple[float, bool]] = []
    delays = Delays(
        {"mdl.execute_async": 1.0}, 2.0, 4.0, lambda seconds, holds: passed.append((seconds, holds))
    )
    rig = Rig(tmp_path, delays=delays)
    path = rig.static_om()
    first, second = rig.load(path), rig.load(path)
    x, y = rig.device_bytes(bytes(LARGE_BYTES)), rig.malloc(LARGE_BYTES)
    datasets = rig.dataset([(x, LARGE_BYTES)]), rig.dataset([(y, LARGE_BYTES)])
    assert passed == [(2.0, True)]
    passed.clear()
    source, _ = rig.pinned(bytes(64))
    assert rig.acl.mdl.execute(first, *datasets) == OK
    assert rig.acl.rt.memcpy_async(x, LARGE_BYTES, source, LARGE_BYTES, H2D, rig.stream) == OK
    assert rig.acl.mdl.execute_async(second, *datasets, rig.stream) == OK
    assert passed == [(4.0, True), (1.0, True)]
    assert rig.synchronize() == OK
    assert passed[2:] == [(2.0, False), (4.0, False)]


def test_any_call_may_be_slow_and_holds_the_gil_as_the_module_would(tmp_path: Path) -> None:
    """Blocking calls with the GIL: these are pyACL's; without: the synchronizing ones."""
    holds = dict.fromkeys(HOLDING_CALLS, True) | {"rt.synchronize_stream": False}
    passed: list[tuple[float, bool]] = []
    delays = Delays(
        dict.fromkeys(holds, 3.0), pause=lambda seconds, gil: passed.append((seconds, gil))
    )
    rig = Rig(tmp_path, delays=delays)
    for name, holds_gil in holds.items():
        passed.clear()
        rig.call(name)
        assert passed[:1] == [(3.0, holds_gil)], name


HOLDING_CALLS = (
    *("mdl.execute", "mdl.execute_async", "rt.memcpy", "rt.memcpy_async", "rt.malloc"),
    *("mdl.load_from_file", "mdl.load_from_mem", "mdl.load_with_config"),
    *("mdl.load_from_file_with_mem", "mdl.load_from_mem_with_mem"),
)
