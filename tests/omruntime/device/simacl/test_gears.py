"""Gears: the extra input, and what its buffer says when a run begins."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from omruntime.device.simacl import UndefinedBehaviourError
from omruntime.manifest import TensorSpec
from tests.omruntime.device.simacl.rig import H2D, LARGE_BYTES, OK, GearedRun, Rig, StaticRun
from tests.omruntime.device.simulated_oms import float_model, write_simulated_om


def test_the_gear_decides_the_shape(geared: GearedRun) -> None:
    assert geared.acl.rt.memset(geared.y, LARGE_BYTES, 0, LARGE_BYTES) == OK
    assert geared.set_gear(2, 1) == OK
    assert geared.launch() == OK
    assert geared.synchronize() == OK
    values = np.frombuffer(geared.read(geared.y, LARGE_BYTES), np.float32)
    assert values.tolist() == [0.0, 2.0, *[0.0] * 10]


def test_the_gear_is_written_at_once_in_8_or_4_bytes(geared: GearedRun) -> None:
    assert geared.set_gear(3, 4) == OK
    assert np.frombuffer(geared.read(geared.gear, 16), np.int64).tolist() == [3, 4]
    small = geared.dataset([(geared.x, LARGE_BYTES), (geared.gear, 8)])
    assert geared.set_gear(2, 1, dataset=small) == OK
    assert np.frombuffer(geared.read(geared.gear, 8), np.int32).tolist() == [2, 1]
    tiny = geared.dataset([(geared.x, LARGE_BYTES), (geared.gear, 4)])
    assert geared.set_gear(2, 1, dataset=tiny) == 145011


def test_a_gear_that_was_never_set_is_caught(geared: GearedRun) -> None:
    with pytest.raises(UndefinedBehaviourError, match="gear was never set"):
        geared.launch()


def test_wrong_gears_are_refused(geared: GearedRun) -> None:
    assert geared.set_gear(2) == 145012
    assert geared.set_gear(2, 1, 1) == 145012
    assert geared.set_gear(3, 1) == 145013
    assert geared.set_gear() == 100000
    output_only = geared.dataset([(geared.x, LARGE_BYTES)])
    assert geared.set_gear(2, 1, dataset=output_only) == 100000
    with pytest.raises(UndefinedBehaviourError, match="dimCount is 3, dims has 2"):
        geared.acl.mdl.set_input_dynamic_dims(
            geared.model, geared.inputs, 1, {"dimCount": 3, "dims": [2, 1]}
        )
    with pytest.raises(TypeError, match="args parse failed"):
        geared.acl.mdl.set_input_dynamic_dims(geared.model, geared.inputs, 1, [2, 1])
    with pytest.raises(UndefinedBehaviourError, match="the gear input is 1"):
        geared.acl.mdl.set_input_dynamic_dims(
            geared.model, geared.inputs, 0, {"dimCount": 2, "dims": [2, 1]}
        )


def test_a_wrong_static_dim_is_told_from_an_unknown_gear(rig: Rig) -> None:
    shape: tuple[int | str, ...] = ("batch", 8, "tokens")
    specs = (TensorSpec("x", "float32", shape),), (TensorSpec("y", "float32", shape),)
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    model = float_model({"x": shape}, {"y": shape}, nodes)
    gears = ({"batch": 2, "tokens": 4}, {"batch": 3, "tokens": 4})
    model_id = rig.load(str(write_simulated_om(rig.folder / "m.om", model, specs, gears)))
    inputs = rig.dataset([(rig.malloc(512), 512), (rig.malloc(64), 64)])
    # The last: 4 in both gears, but a gear's to choose.
    for wanted, code in (([2, 9, 4], 145012), ([4, 8, 4], 145013), ([2, 8, 5], 145013)):
        dims = {"name": "", "dimCount": 3, "dims": wanted}
        assert rig.acl.mdl.set_input_dynamic_dims(model_id, inputs, 1, dims) == code


def test_a_gear_set_in_another_context_is_caught(geared: GearedRun) -> None:
    geared.value(geared.acl.rt.create_context(0))
    with pytest.raises(UndefinedBehaviourError, match=r"set_input_dynamic_dims in another context"):
        geared.set_gear(2, 1)


def test_a_static_model_has_no_gears(static: StaticRun) -> None:
    dims = {"dimCount": 2, "dims": [3, 4]}
    assert static.acl.mdl.set_input_dynamic_dims(static.model, static.inputs, 0, dims) == 100000
    assert static.acl.mdl.set_input_dynamic_dims(9, static.inputs, 0, dims) == 145003


def test_changing_the_gear_of_a_queued_run_is_caught(geared: GearedRun) -> None:
    assert geared.set_gear(3, 4) == OK
    assert geared.launch() == OK
    with pytest.raises(UndefinedBehaviourError, match="set_input_dynamic_dims while a run"):
        geared.set_gear(2, 1)


def test_two_datasets_with_one_gear_buffer_are_caught(geared: GearedRun) -> None:
    other = geared.dataset([(geared.x, LARGE_BYTES), (geared.gear, 16)])
    assert geared.set_gear(3, 4) == OK
    assert geared.set_gear(2, 1, dataset=other) == OK
    assert geared.launch() == OK
    with pytest.raises(UndefinedBehaviourError, match=r"holds \[2, 1\] .* gear is \[3, 4\]"):
        geared.synchronize()


def test_a_copy_over_the_gear_buffer_is_seen_by_the_run(geared: GearedRun) -> None:
    source, _ = geared.pinned(bytes(64))
    assert geared.set_gear(3, 4) == OK
    assert geared.acl.rt.memcpy_async(geared.gear, 64, source, 64, H2D, geared.stream) == OK
    assert geared.launch() == OK
    with pytest.raises(UndefinedBehaviourError, match=r"holds \[0, 0\]"):
        geared.synchronize()


def test_a_gear_buffer_in_host_memory_is_caught(geared: GearedRun) -> None:
    address, _ = geared.pinned(bytes(64))
    inputs = geared.dataset([(geared.x, LARGE_BYTES), (address, 16)])
    with pytest.raises(UndefinedBehaviourError, match="not device memory"):
        geared.set_gear(3, 4, dataset=inputs)
    assert geared.set_gear(3, 4) == OK
    buffer = geared.acl.mdl.get_dataset_buffer(geared.inputs, 1)
    assert geared.acl.update_data_buffer(buffer, address, 64) == OK
    with pytest.raises(UndefinedBehaviourError, match="lies in pinned host memory"):
        geared.launch()
