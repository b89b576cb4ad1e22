"""The module's shape: names, argument parsing, return shapes, what is not there."""

from __future__ import annotations

import numpy as np
import pytest

from omruntime.device.simacl import NotSimulatedError, Simulation, UndefinedBehaviourError
from omruntime.device.simacl.signatures import load_signatures
from omruntime.device.simacl.surface import IMPLEMENTATIONS
from tests.omruntime.device.simacl.rig import OK, Rig

UNSUPPORTED_ON_310P = (
    "rt.host_register",
    "rt.host_register_v2",
    "rt.host_unregister",
    "rt.host_get_device_pointer",
    "rt.get_memcpy_desc_size",
    "rt.set_memcpy_desc",
    "rt.memcpy_async_with_desc",
    "rt.value_write",
    "rt.value_wait",
    "rt.device_task_abort",
    "rt.device_get_uuid",
    "rt.set_stream_overflow_switch",
    "rt.get_stream_overflow_switch",
    "rt.stream_abort",
    "rt.set_op_wait_timeout",
    "rt.cmo_async",
    "rt.notify_batch_reset",
    "op.start_dump_args",
    "op.stop_dump_args",
    "util.start_thread",
    "util.stop_thread",
)


def test_every_implementation_has_a_signature() -> None:
    assert IMPLEMENTATIONS.keys() <= load_signatures().keys()
    assert len(load_signatures()) == 387


def test_no_constants_are_exported(rig: Rig) -> None:
    for namespace in (rig.acl, rig.acl.rt, rig.acl.mdl, rig.acl.util):
        assert not [name for name in vars(namespace) if name.isupper()]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((64,), {}),
        ((64, 0, 0), {}),
        ((64,), {"policy": 0}),
        ((64, 0), {"policy": 0}),
        ((np.int64(64), 0), {}),
        ((64.0, 0), {}),
        (("64", 0), {}),
        ((64, 1 << 31), {}),
    ],
    ids=str,
)
def test_wrong_arguments_are_a_type_error(
    rig: Rig, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    with pytest.raises(TypeError, match=r"^acl\.rt\.malloc args parse failed$"):
        rig.acl.rt.malloc(*args, **kwargs)


def test_negative_sizes_wrap(rig: Rig) -> None:
    assert rig.acl.rt.malloc(-64, 2) == (0, 207001)
    desc = rig.acl.mdl.create_desc()
    assert rig.acl.mdl.get_input_dynamic_gear_count(desc, -1) == (0, OK)
    assert rig.acl.mdl.get_input_dynamic_gear_count(desc, 0) == (0, 100000)


def test_returns_are_bare_or_tuples(rig: Rig) -> None:
    assert rig.acl.rt.set_device(0) == OK
    assert rig.acl.rt.get_device() == (0, OK)
    assert rig.acl.get_soc_name() == "Ascend310P3"
    dataset = rig.acl.mdl.create_dataset()
    buffer = rig.acl.create_data_buffer(rig.malloc(64), 64)
    assert rig.acl.mdl.add_dataset_buffer(dataset, buffer) == (dataset, OK)
    assert rig.acl.mdl.get_dataset_num_buffers(dataset) == 1


@pytest.mark.parametrize("name", UNSUPPORTED_ON_310P)
def test_calls_that_310p_lacks_are_refused(rig: Rig, name: str) -> None:
    result = rig.call(name)
    assert (result[-1] if isinstance(result, tuple) else result) == 207000


def test_only_those_calls_are_marked_unsupported() -> None:
    marked = {name for name, s in load_signatures().items() if s.is_unsupported}
    assert marked == set(UNSUPPORTED_ON_310P)


def test_a_known_call_that_is_not_simulated_is_named(rig: Rig) -> None:
    with pytest.raises(NotSimulatedError, match=r"acl\.op\.set_model_dir is not simulated"):
        rig.acl.op.set_model_dir("x")


def test_before_init_models_refuse_and_the_rest_raises() -> None:
    simulation = Simulation()
    acl = simulation.module
    assert acl.mdl.load_from_file("x.om") == (0, 145001)  # type: ignore[attr-defined]
    assert "acl.init" in acl.get_recent_err_msg()  # type: ignore[attr-defined]
    with pytest.raises(UndefinedBehaviourError, match=r"set_device before acl\.init"):
        acl.rt.set_device(0)  # type: ignore[attr-defined]


def test_the_gil_is_released_by_those_calls_alone() -> None:
    released = {name for name, s in load_signatures().items() if s.releases_gil}
    assert released == {
        "rt.synchronize_stream",
        "rt.synchronize_stream_with_timeout",
        "rt.synchronize_device",
        "rt.synchronize_event",
        "rt.synchronize_event_with_timeout",
        "rt.stream_wait_event",
        "rt.process_report",
        "util.start_thread",
        "util.stop_thread",
    }


def test_faults_can_be_injected(rig: Rig) -> None:
    rig.simulation.fail_next("rt.malloc", 507899, "the driver is ill")
    assert rig.acl.rt.malloc(64, 0) == (0, 507899)
    assert rig.text() == "507899: the driver is ill"
    assert rig.acl.rt.malloc(64, 0)[1] == OK
    rig.simulation.fail_next("run", 507015, "an AI Core fault")
    event = rig.value(rig.acl.rt.create_event())
    assert rig.acl.rt.record_event(event, rig.stream) == OK
    assert rig.synchronize() == 507015
    assert rig.text() == "507015: an AI Core fault"
