"""Contexts, streams, events: whose they are, and when work runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from omruntime.device.simacl import Delays, SimulatedCard, UndefinedBehaviourError
from tests.omruntime.device.simacl.rig import D2H, H2D, LARGE_BYTES, OK, Rig, StaticRun


def elsewhere(call: Callable[[], object]) -> object:
    """A call's result in another thread."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]


def test_a_thread_without_context_is_refused(static: StaticRun) -> None:
    rt, mdl = static.acl.rt, static.acl.mdl
    host = static.value(rt.malloc_host(64))
    for call, wanted in (
        (lambda: rt.malloc(64, 0), (0, 107002)),
        (lambda: rt.malloc_host(64), (0, 107002)),
        (lambda: rt.memcpy(static.x, 16, host, 16, H2D), 107002),
        (lambda: rt.memcpy_async(static.x, 16, host, 16, H2D, static.stream), 107002),
        (lambda: rt.memset(static.x, 16, 0, 16), 107002),
        (lambda: rt.create_stream(), (0, 107002)),
        (lambda: rt.create_event(), (0, 107002)),
        (lambda: rt.synchronize_stream(static.stream), 107002),
        (lambda: rt.synchronize_device(), 107002),
        (lambda: rt.get_mem_info(0), (0, 0, 107002)),
        (lambda: rt.get_device(), (0, 107002)),
        (lambda: rt.get_context(), (0, 107002)),
        (lambda: mdl.execute(static.model, static.inputs, static.outputs), 107002),
        (lambda: mdl.unload(static.model), 107002),
        (lambda: mdl.load_from_file(static.static_om()), (0, 107002)),
        (lambda: mdl.query_size(static.static_om()), (0, 0, 107002)),
        (lambda: mdl.query_size_from_mem(host, 64), (0, 0, 107002)),
        (lambda: mdl.get_desc(mdl.create_desc(), static.model), 107002),
        (lambda: static.launch(), 107002),
    ):
        assert elsewhere(call) == wanted
    free = static.malloc(64)
    assert elsewhere(lambda: rt.free(free)) == OK


def test_a_thread_may_take_the_context_over(static: StaticRun) -> None:
    context = static.value(static.acl.rt.get_context())

    def run() -> object:
        assert static.acl.rt.set_context(context) == OK
        return static.acl.mdl.execute(static.model, static.inputs, static.outputs)

    assert elsewhere(run) == OK


def test_a_null_or_dead_context_is_refused(rig: Rig) -> None:
    assert rig.acl.rt.set_context(0) == 100000
    context = rig.value(rig.acl.rt.create_context(0))
    assert rig.acl.rt.destroy_context(context) == OK
    with pytest.raises(UndefinedBehaviourError, match="destroyed before"):
        rig.acl.rt.set_context(context)


def test_the_primary_context_cannot_be_destroyed(rig: Rig) -> None:
    primary = rig.value(rig.acl.rt.get_context())
    assert rig.acl.rt.destroy_context(primary) == 107002


def test_streams_and_events_of_another_context_are_refused(rig: Rig) -> None:
    rt = rig.acl.rt
    event = rig.value(rt.create_event())
    address, host = rig.malloc(64), rig.value(rt.malloc_host(64))
    rig.value(rt.create_context(0))
    other = rig.value(rt.create_stream())
    assert rt.memcpy_async(address, 64, host, 64, H2D, rig.stream) == 107003
    assert rt.record_event(event, other) == 107003
    assert rt.stream_wait_event(other, event) == 107003
    assert rt.destroy_stream(rig.stream) == 107003
    assert rt.destroy_event(event) == 107003
    assert rt.synchronize_stream(rig.stream) == OK  # switches by itself


def test_a_device_switch_leaves_the_other_devices_stream_behind(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SimulatedCard(num_devices=2))
    address, host = rig.malloc(64), rig.value(rig.acl.rt.malloc_host(64))
    assert rig.acl.rt.set_device(1) == OK
    assert rig.acl.rt.memcpy_async(address, 64, host, 64, H2D, rig.stream) == 107003
    with pytest.raises(UndefinedBehaviourError, match="stream of another device"):
        rig.acl.rt.memcpy_async(address, 64, host, 64, H2D, 0)


def test_every_kind_of_dead_handle_is_caught(rig: Rig) -> None:
    acl, mdl = rig.acl, rig.acl.mdl
    for handle, destroy, use in (
        (mdl.create_dataset(), mdl.destroy_dataset, mdl.get_dataset_num_buffers),
        (acl.create_data_buffer(64, 64), acl.destroy_data_buffer, acl.get_data_buffer_addr),
        (mdl.create_desc(), mdl.destroy_desc, mdl.get_num_inputs),
        (mdl.create_config_handle(), mdl.destroy_config_handle, mdl.load_with_config),
    ):
        assert destroy(handle) == OK
        for call in (destroy, use):
            with pytest.raises(UndefinedBehaviourError, match="destroyed before"):
                call(handle)


@pytest.mark.parametrize("kind", ["stream", "event", "context"])
def test_a_dead_or_invented_handle_is_caught(rig: Rig, kind: str) -> None:
    create = {"stream": rig.acl.rt.create_stream, "event": rig.acl.rt.create_event}.get(
        kind, lambda: rig.acl.rt.create_context(0)
    )
    destroy = getattr(rig.acl.rt, f"destroy_{kind}")
    handle = rig.value(create())
    assert destroy(handle) == OK
    if kind == "context":
        assert rig.acl.rt.set_device(0) == OK
    with pytest.raises(UndefinedBehaviourError, match="destroyed before"):
        destroy(handle)
    with pytest.raises(UndefinedBehaviourError, match="never given out"):
        destroy(12345)
    if kind != "stream":
        with pytest.raises(UndefinedBehaviourError, match="is a Stream"):
            destroy(rig.stream)


def test_a_stream_with_work_is_not_destroyed(static: StaticRun) -> None:
    assert static.launch() == OK
    assert static.acl.rt.stream_query(static.stream) == (1, OK)
    with pytest.raises(UndefinedBehaviourError, match="synchronize first"):
        static.acl.rt.destroy_stream(static.stream)
    assert static.synchronize() == OK
    assert static.acl.rt.stream_query(static.stream) == (0, OK)


def test_a_context_with_work_is_not_destroyed(rig: Rig) -> None:
    context = rig.value(rig.acl.rt.create_context(0))
    host, _ = rig.pinned(bytes(64))
    assert rig.acl.rt.memcpy_async(rig.malloc(64), 64, host, 64, H2D, 0) == OK
    with pytest.raises(UndefinedBehaviourError, match="destroy_context while work is queued"):
        rig.acl.rt.destroy_context(context)


def test_what_a_destroyed_context_held_is_a_leak(rig: Rig) -> None:
    context = rig.value(rig.acl.rt.create_context(0))
    rig.value(rig.acl.rt.create_stream())
    assert rig.acl.rt.destroy_context(context) == OK
    (leak,) = rig.simulation.leaks
    assert leak.startswith("stream 0x")
    assert leak.endswith("of a destroyed context")


def test_streams_and_events_run_out(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SimulatedCard(max_streams=3, max_events=1))
    rig.value(rig.acl.rt.create_stream())
    assert rig.acl.rt.create_stream() == (0, 207008)
    first, second = (rig.value(rig.acl.rt.create_event()) for _ in range(2))
    assert rig.acl.rt.record_event(first, rig.stream) == OK
    assert rig.acl.rt.record_event(second, rig.stream) == 207007


def test_a_stream_waits_for_an_event_of_another(static: StaticRun) -> None:
    rt = static.acl.rt
    other, event = static.value(rt.create_stream()), static.value(rt.create_event())
    assert static.launch() == OK
    assert rt.record_event(event, static.stream) == OK
    assert rt.query_event_status(event) == (0, OK)
    assert rt.stream_wait_event(other, event) == OK
    assert rt.synchronize_stream(other) == OK
    assert rt.query_event_status(event) == (1, OK)
    assert static.result()[1] == 2.0


def test_work_on_two_streams_needs_an_event_to_order_it(static: StaticRun) -> None:
    rt = static.acl.rt
    first, last = static.value(rt.create_event()), static.value(rt.create_event())
    middle, end = static.value(rt.create_stream()), static.value(rt.create_stream())
    target, _ = static.pinned(bytes(LARGE_BYTES))

    def fetch() -> int:
        code: int = rt.memcpy_async(target, LARGE_BYTES, static.y, LARGE_BYTES, D2H, end)
        return code

    assert rt.record_event(first, static.stream) == OK
    assert static.synchronize() == OK
    assert static.launch() == OK
    assert rt.stream_wait_event(end, first) == OK  # recorded before the run: no help
    with pytest.raises(UndefinedBehaviourError, match="no event orders them"):
        fetch()
    assert rt.record_event(first, static.stream) == OK
    assert rt.stream_wait_event(middle, first) == OK
    assert rt.record_event(last, middle) == OK
    assert rt.stream_wait_event(end, last) == OK  # behind the run by way of another stream
    assert fetch() == OK
    with pytest.raises(UndefinedBehaviourError, match="no event orders them"):
        rt.memset_async(static.y, LARGE_BYTES, 0, LARGE_BYTES, middle)  # end reads it
    with pytest.raises(UndefinedBehaviourError, match="no event orders them"):
        static.launch()
    assert rt.synchronize_stream(end) == OK
    assert rt.memset_async(static.y, LARGE_BYTES, 0, LARGE_BYTES, middle) == OK


def test_an_event_waits_for_what_came_before_it_alone(static: StaticRun) -> None:
    rt = static.acl.rt
    event = static.value(rt.create_event())
    assert rt.record_event(event, static.stream) == OK
    assert static.launch() == OK
    assert rt.synchronize_event(event) == OK
    with pytest.raises(UndefinedBehaviourError, match="queued"):
        static.result()
    assert rt.record_event(event, static.stream) == OK
    with pytest.raises(UndefinedBehaviourError, match="before the event is complete"):
        rt.destroy_event(event)


def test_event_times_and_resets_want_their_flags(rig: Rig) -> None:
    rt = rig.acl.rt
    plain, other = rig.value(rt.create_event()), rig.value(rt.create_event_with_flag(1))
    assert rt.event_elapsed_time(plain, plain) == (0.0, 107006)
    for event in (plain, other):
        assert rt.record_event(event, rig.stream) == OK
    assert rig.synchronize() == OK
    assert rt.event_elapsed_time(plain, plain) == (0.0, OK)
    assert rt.event_elapsed_time(plain, other) == (0.0, 107006)
    assert rt.reset_event(plain, rig.stream) == 107000
    assert rt.reset_event(other, rig.stream) == OK


def test_timed_waits_expire_and_the_work_goes_on(tmp_path: Path) -> None:
    passed: list[tuple[float, bool]] = []
    delays = Delays(execute_s=1.0, pause=lambda s, gil: passed.append((s, gil)))
    rig = Rig(tmp_path, delays=delays)
    model = rig.load(rig.static_om())
    x, y = rig.device_bytes(bytes(LARGE_BYTES)), rig.malloc(LARGE_BYTES)
    datasets = rig.dataset([(x, LARGE_BYTES)]), rig.dataset([(y, LARGE_BYTES)])
    event = rig.value(rig.acl.rt.create_event())
    assert rig.acl.mdl.execute_async(model, *datasets, rig.stream) == OK
    assert rig.acl.rt.record_event(event, rig.stream) == OK
    wait = rig.acl.rt.synchronize_stream_with_timeout
    for bad in (0, -2):
        assert wait(rig.stream, bad) == 107000
        assert rig.acl.rt.synchronize_event_with_timeout(event, bad) == 107000
    passed.clear()
    assert wait(rig.stream, 250) == 507046
    assert rig.acl.rt.synchronize_event_with_timeout(event, 250) == 507047
    assert wait(rig.stream, 600) == OK
    assert rig.read(y, 4) == bytes(4)
    # Without the GIL, and no longer than the run takes together.
    assert [p for p in passed if p[0]] == [(0.25, False), (0.25, False), (0.5, False)]


def test_a_persistent_stream_is_not_waited_for(rig: Rig) -> None:
    stream = rig.value(rig.acl.rt.create_stream_with_config(0, 4))
    address, host = rig.malloc(64), rig.value(rig.acl.rt.malloc_host(64))
    assert rig.acl.rt.memcpy_async(address, 64, host, 64, H2D, stream) == OK
    assert rig.acl.rt.synchronize_stream(stream) == OK
    assert rig.acl.rt.stream_query(stream) == (1, OK)


def test_stream_0_is_the_contexts_default(rig: Rig) -> None:
    address, host = rig.malloc(64), rig.value(rig.acl.rt.malloc_host(64))
    assert rig.acl.rt.memcpy_async(address, 64, host, 64, H2D, 0) == OK
    assert rig.acl.rt.stream_query(0) == (1, OK)
    assert rig.acl.rt.synchronize_device() == OK
    assert rig.acl.rt.stream_query(0) == (0, OK)
