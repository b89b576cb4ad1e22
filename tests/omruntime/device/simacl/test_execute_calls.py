"""Runs: what a correct program gets, and what each misuse leads to."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from omruntime.device.simacl import Delays, SimulatedCard, UndefinedBehaviourError
from omruntime.manifest import TensorSpec
from tests.omruntime.device.simacl.rig import D2D, H2D, LARGE_BYTES, OK, GearedRun, Rig, StaticRun
from tests.omruntime.device.simulated_oms import (
    SMALL_GEAR,
    WEIGHT_BYTES,
    WORK_BYTES,
    float_model,
    write_simulated_om,
    write_twice,
)

TWICE = [2.0 * i for i in range(12)]


def test_a_synchronous_run_is_done_when_it_returns(static: StaticRun) -> None:
    assert static.acl.mdl.execute(static.model, static.inputs, static.outputs) == OK
    assert static.result() == TWICE


def test_an_asynchronous_run_is_done_after_the_synchronize(static: StaticRun) -> None:
    assert static.launch() == OK
    with pytest.raises(UndefinedBehaviourError, match="run of model 1 is queued"):
        static.result()
    assert static.synchronize() == OK
    assert static.result() == TWICE


def test_a_read_of_pinned_memory_before_the_synchronize_finds_poison(static: StaticRun) -> None:
    target, array = static.pinned(bytes(LARGE_BYTES))
    assert static.launch() == OK
    code = static.acl.rt.memcpy_async(target, LARGE_BYTES, static.y, LARGE_BYTES, 2, static.stream)
    assert code == OK
    assert np.isnan(array.view(np.float16)).all()
    assert static.synchronize() == OK
    assert array.view(np.float32).tolist() == TWICE


def test_mixing_the_styles_on_one_id_fails(static: StaticRun) -> None:
    assert static.launch() == OK
    assert static.synchronize() == OK
    assert static.acl.mdl.execute(static.model, static.inputs, static.outputs) == 500002
    assert "not support mix execute" in static.text()


def test_execute_with_a_pending_copy_into_its_input_is_caught(static: StaticRun) -> None:
    source, _ = static.pinned(bytes(LARGE_BYTES))
    code = static.acl.rt.memcpy_async(
        static.x, LARGE_BYTES, source, LARGE_BYTES, H2D, static.stream
    )
    assert code == OK
    with pytest.raises(UndefinedBehaviourError, match="execute of model 1 while a copy"):
        static.acl.mdl.execute(static.model, static.inputs, static.outputs)


def test_wrong_counts_fail(static: StaticRun, geared: GearedRun) -> None:
    empty = static.acl.mdl.create_dataset()
    assert static.acl.mdl.execute(static.model, empty, static.outputs) == 500002
    assert static.acl.mdl.execute(static.model, static.inputs, empty) == 500002
    no_gear = geared.dataset([(geared.x, LARGE_BYTES)])
    stream = geared.stream
    assert geared.acl.mdl.execute_async(geared.model, no_gear, geared.outputs, stream) == 500002
    assert "gear input counts" in geared.text()


def test_a_null_dataset_and_an_unknown_model_fail(static: StaticRun) -> None:
    assert static.acl.mdl.execute(static.model, 0, static.outputs) == 100000
    assert static.acl.mdl.execute(77, static.inputs, static.outputs) == 145003


def test_a_buffer_may_be_64_bytes_short_of_the_models_figure(rig: Rig) -> None:
    spec = ((TensorSpec("x", "float32", (32,)),), (TensorSpec("y", "float32", (32,)),))
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    model = float_model({"x": (32,)}, {"y": (32,)}, nodes)
    path = write_simulated_om(rig.folder / "m.om", model, spec, [{}])
    model_id = rig.load(str(path))
    x, y = rig.device_bytes(bytes(128)), rig.malloc(128)
    outputs = rig.dataset([(y, 128)])
    assert rig.acl.mdl.execute(model_id, rig.dataset([(x, 63)]), outputs) == 500002
    with pytest.raises(UndefinedBehaviourError, match="takes 128"):
        rig.acl.mdl.execute(model_id, rig.dataset([(x, 64)]), outputs)
    assert rig.acl.mdl.execute(model_id, rig.dataset([(x, 128)]), outputs) == OK


def test_a_buffer_too_small_for_its_gear_is_caught(geared: GearedRun) -> None:
    short = geared.dataset([(geared.x, 32), (geared.gear, 16)])
    assert geared.set_gear(3, 4, dataset=short) == OK
    with pytest.raises(UndefinedBehaviourError, match=r"32 bytes, \[3, 4\] takes 48"):
        geared.acl.mdl.execute_async(geared.model, short, geared.outputs, geared.stream)
    assert geared.set_gear(2, 1, dataset=short) == OK
    code = geared.acl.mdl.execute_async(geared.model, short, geared.outputs, geared.stream)
    assert code == OK


def test_a_set_gear_takes_the_place_of_the_models_figure(rig: Rig) -> None:
    gears = (SMALL_GEAR, {"batch": 30, "tokens": 4})
    model = rig.load(str(write_twice(rig.folder / "wide.om", gears)))
    x, y, gear = rig.device_bytes(bytes(64)), rig.malloc(64), rig.malloc(64)
    inputs, outputs = rig.dataset([(x, 64), (gear, 16)]), rig.dataset([(y, 64)])
    dims = {"name": "", "dimCount": 2, "dims": [2, 1]}
    assert rig.acl.mdl.set_input_dynamic_dims(model, inputs, 1, dims) == OK
    assert rig.acl.mdl.execute(model, inputs, outputs) == OK  # 64 bytes, the largest takes 480


def test_an_input_in_host_memory_is_caught(static: StaticRun) -> None:
    address, _ = static.pinned(bytes(LARGE_BYTES))
    host = static.dataset([(address, LARGE_BYTES)])
    with pytest.raises(UndefinedBehaviourError, match="x lies in pinned host memory"):
        static.acl.mdl.execute(static.model, host, static.outputs)
    with pytest.raises(UndefinedBehaviourError, match="y lies in pinned host memory"):
        static.acl.mdl.execute(static.model, static.inputs, host)
    kept = bytes(LARGE_BYTES)
    pageable = static.dataset([(static.acl.util.bytes_to_ptr(kept), LARGE_BYTES)])
    with pytest.raises(UndefinedBehaviourError, match="x lies in pageable host memory"):
        static.acl.mdl.execute(static.model, pageable, static.outputs)


def test_memory_of_another_device_is_caught(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SimulatedCard(num_devices=2))
    rt, mdl = rig.acl.rt, rig.acl.mdl
    context = rig.value(rt.get_context())
    static, geared = rig.load(rig.static_om()), rig.load(rig.geared_om())
    mine = [(rig.malloc(LARGE_BYTES), LARGE_BYTES) for _ in range(2)]
    assert rt.set_device(1) == OK
    other = rig.malloc(LARGE_BYTES)
    assert rt.set_context(context) == OK
    theirs = rig.dataset([(other, LARGE_BYTES)])
    with pytest.raises(UndefinedBehaviourError, match="x lies on device 1, the model is loaded"):
        mdl.execute_async(static, theirs, rig.dataset(mine[:1]), rig.stream)
    with pytest.raises(UndefinedBehaviourError, match="y lies on device 1"):
        mdl.execute_async(static, rig.dataset(mine[:1]), theirs, rig.stream)
    gear = {"dimCount": 2, "name": "", "dims": [3, 4]}
    with pytest.raises(UndefinedBehaviourError, match="of the model's chip"):
        mdl.set_input_dynamic_dims(geared, rig.dataset([mine[0], (other, 16)]), 1, gear)
    with pytest.raises(UndefinedBehaviourError, match="stream of another device"):
        rt.memset_async(other, LARGE_BYTES, 0, LARGE_BYTES, rig.stream)


def test_an_empty_output_fails(static: StaticRun) -> None:
    empty = static.dataset([(0, 0)])
    code = static.acl.mdl.execute_async(static.model, static.inputs, empty, static.stream)
    assert code == 500002
    # On hardware `execute` would allocate, which is not simulated.
    assert static.acl.mdl.execute(static.model, static.inputs, empty) == 500002


def test_one_id_in_flight_on_two_streams_is_caught(static: StaticRun) -> None:
    other = static.value(static.acl.rt.create_stream())
    assert static.launch() == OK
    assert static.launch() == OK  # back to back on one stream is sound
    with pytest.raises(UndefinedBehaviourError, match="in flight on another stream"):
        static.acl.mdl.execute_async(static.model, static.inputs, static.outputs, other)


def test_two_threads_inside_of_execute_are_caught(tmp_path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def wait(seconds: float, holds_gil: bool) -> None:
        if seconds:
            inside.set()
            go_on.wait(10)

    rig = Rig(tmp_path, delays=Delays(execute_s=1.0, pause=wait))
    path, work = rig.static_om(), rig.malloc(WORK_BYTES)
    model, sharer = (
        rig.value(rig.acl.mdl.load_from_file_with_mem(path, work, WORK_BYTES, 0, 0))
        for _ in range(2)
    )
    x, y, z = rig.device_bytes(bytes(LARGE_BYTES)), rig.malloc(LARGE_BYTES), rig.malloc(LARGE_BYTES)
    inputs, outputs, others = (rig.dataset([(a, LARGE_BYTES)]) for a in (x, y, z))
    context = rig.value(rig.acl.rt.get_context())

    def run() -> None:
        rig.acl.rt.set_context(context)
        rig.acl.mdl.execute(model, inputs, outputs)

    thread = threading.Thread(target=run)
    thread.start()
    assert inside.wait(10)
    with pytest.raises(UndefinedBehaviourError, match="two threads run model 1"):
        rig.acl.mdl.execute(model, inputs, outputs)
    with pytest.raises(UndefinedBehaviourError, match=r"execute of model 1 .* shares its work"):
        rig.acl.mdl.execute(sharer, inputs, others)
    with pytest.raises(UndefinedBehaviourError, match="while it runs"):
        rig.acl.mdl.unload(model)
    go_on.set()
    thread.join()


def test_two_models_in_flight_on_two_streams_with_one_work_memory_are_caught(rig: Rig) -> None:
    work = rig.malloc(4096)
    path = rig.static_om()
    first, second = (
        rig.value(rig.acl.mdl.load_from_file_with_mem(path, work, 4096, 0, 0)) for _ in range(2)
    )
    x, y = rig.device_bytes(bytes(LARGE_BYTES)), rig.malloc(2 * 64)
    inputs = rig.dataset([(x, LARGE_BYTES)])
    outputs = [rig.dataset([(y + 64 * i, LARGE_BYTES)]) for i in range(2)]
    other = rig.value(rig.acl.rt.create_stream())
    assert rig.acl.mdl.execute_async(first, inputs, outputs[0], rig.stream) == OK
    assert rig.acl.mdl.execute_async(second, inputs, outputs[1], rig.stream) == OK
    assert rig.synchronize() == OK
    assert rig.acl.mdl.execute_async(first, inputs, outputs[0], rig.stream) == OK
    with pytest.raises(UndefinedBehaviourError, match="shares its work memory"):
        rig.acl.mdl.execute_async(second, inputs, outputs[1], other)
    third = rig.value(rig.acl.mdl.load_from_file_with_mem(path, work, 4096, 0, 0))
    # `execute` is ordered with no stream, so even the one that the other run is on is no help.
    with pytest.raises(UndefinedBehaviourError, match="shares its work memory"):
        rig.acl.mdl.execute(third, inputs, outputs[1])


def test_a_run_in_another_context_is_caught(static: StaticRun) -> None:
    static.value(static.acl.rt.create_context(0))
    with pytest.raises(UndefinedBehaviourError, match="another context than it was loaded in"):
        static.acl.mdl.execute(static.model, static.inputs, static.outputs)


def test_a_destroyed_buffer_in_a_dataset_is_caught(static: StaticRun) -> None:
    buffer = static.acl.mdl.get_dataset_buffer(static.inputs, 0)
    assert static.acl.destroy_data_buffer(buffer) == OK
    with pytest.raises(UndefinedBehaviourError, match="destroyed before"):
        static.acl.mdl.execute(static.model, static.inputs, static.outputs)


def test_destroying_what_a_queued_run_uses_is_caught(static: StaticRun) -> None:
    assert static.launch() == OK
    buffer = static.acl.mdl.get_dataset_buffer(static.inputs, 0)
    with pytest.raises(UndefinedBehaviourError, match="is queued"):
        static.acl.destroy_data_buffer(buffer)
    with pytest.raises(UndefinedBehaviourError, match="is queued"):
        static.acl.mdl.destroy_dataset(static.outputs)
    for address in (static.x, static.y):
        with pytest.raises(UndefinedBehaviourError, match="synchronize first"):
            static.acl.rt.free(address)


def test_input_and_output_at_one_address_are_caught(static: StaticRun) -> None:
    same = static.dataset([(static.x, LARGE_BYTES)])
    with pytest.raises(UndefinedBehaviourError, match=r"x and output .*y overlap"):
        static.acl.mdl.execute(static.model, static.inputs, same)


def test_a_declared_pair_must_share_its_address(tmp_path: Path) -> None:
    run = StaticRun(tmp_path, output_reuse_input_mem_indexes="0,0")
    assert run.acl.mdl.execute(run.model, run.inputs, run.outputs) == 500002
    same = run.dataset([(run.x, LARGE_BYTES)])
    assert run.acl.mdl.execute(run.model, run.inputs, same) == OK
    run.y = run.x
    assert run.result() == TWICE


def test_a_ref_output_changes_its_input_too(tmp_path: Path) -> None:
    run = StaticRun(tmp_path, simulated_ref_outputs="0,0")
    assert run.acl.mdl.execute(run.model, run.inputs, run.outputs) == OK
    assert run.result() == TWICE
    assert np.frombuffer(run.read(run.x, LARGE_BYTES), np.float32).tolist() == TWICE
    assert run.simulation.num_extra_copies == 1
    same = run.dataset([(run.x, LARGE_BYTES)])
    assert run.acl.mdl.execute(run.model, run.inputs, same) == OK
    assert run.simulation.num_extra_copies == 1


def test_partial_overlap_is_caught(static: StaticRun) -> None:
    block = static.malloc(128)
    assert static.acl.rt.memcpy(block, 48, static.x, 48, D2D) == OK
    inputs = static.dataset([(block, LARGE_BYTES)])
    outputs = static.dataset([(block + 32, LARGE_BYTES)])
    with pytest.raises(UndefinedBehaviourError, match="overlap"):
        static.acl.mdl.execute(static.model, inputs, outputs)


def test_overlapping_outputs_are_caught(rig: Rig) -> None:
    shape = (4,)
    specs = tuple(TensorSpec(n, "float32", shape) for n in "xyz")
    nodes = [helper.make_node("Add", ["x", "x"], [n]) for n in "yz"]
    model = float_model({"x": shape}, {"y": shape, "z": shape}, nodes)
    path = write_simulated_om(rig.folder / "two.om", model, (specs[:1], specs[1:]), [{}])
    model_id = rig.load(str(path))
    inputs = rig.dataset([(rig.device_bytes(bytes(16)), 16)])
    block = rig.malloc(64)
    with pytest.raises(UndefinedBehaviourError, match="outputs 0 and 1 overlap"):
        rig.acl.mdl.execute(model_id, inputs, rig.dataset([(block, 16), (block + 8, 16)]))
    assert rig.acl.mdl.execute(model_id, inputs, rig.dataset([(block, 16), (block + 16, 16)])) == OK


def test_tensors_in_a_models_own_memory_are_caught(rig: Rig) -> None:
    block = rig.malloc(WORK_BYTES + WEIGHT_BYTES)
    weight = block + WORK_BYTES
    load = rig.acl.mdl.load_from_file_with_mem
    model = rig.value(load(rig.static_om(), block, WORK_BYTES, weight, WEIGHT_BYTES))
    x, y = (rig.dataset([(rig.device_bytes(bytes(64)), 64)]) for _ in range(2))
    in_work, in_weights = rig.dataset([(block + 64, 64)]), rig.dataset([(weight, 64)])
    for inputs, outputs, what in (
        (in_work, y, "x lies in the model's own work memory"),
        (x, in_work, "y lies in the model's own work memory"),
        (x, in_weights, "y lies over the model's own weights"),
    ):
        with pytest.raises(UndefinedBehaviourError, match=what):
            rig.acl.mdl.execute(model, inputs, outputs)
    assert rig.acl.mdl.execute(model, x, y) == OK


def test_an_output_over_the_gear_buffer_is_caught(geared: GearedRun) -> None:
    assert geared.set_gear(2, 1) == OK
    over = geared.dataset([(geared.gear, LARGE_BYTES)])
    with pytest.raises(UndefinedBehaviourError, match="y lies over the gear buffer"):
        geared.acl.mdl.execute(geared.model, geared.inputs, over)


def test_nothing_in_work_memory_survives_a_run(rig: Rig) -> None:
    work, load = rig.malloc(WORK_BYTES), rig.acl.mdl.load_from_file_with_mem
    path = rig.static_om()
    user = rig.value(load(path, work, WORK_BYTES, 0, 0))
    guest = rig.value(load(path, 0, 0, work + 1024, WEIGHT_BYTES))  # weights where `user` works
    inputs, outputs = (rig.dataset([(rig.device_bytes(bytes(64)), 64)]) for _ in range(2))
    assert rig.acl.rt.memset(work, 64, 1, 64) == OK
    assert rig.acl.mdl.execute(guest, inputs, outputs) == OK
    assert rig.read(work, 64) == b"\1" * 64
    assert rig.acl.mdl.execute(user, inputs, outputs) == OK
    assert np.isnan(np.frombuffer(rig.read(work, 64), np.float16)).all()
    with pytest.raises(UndefinedBehaviourError, match="destroyed by a run whose work memory"):
        rig.acl.mdl.execute(guest, inputs, outputs)
    source = rig.device_bytes(bytes(64))
    assert rig.acl.rt.memcpy(work + 128, 64, source, 64, D2D) == OK
    assert rig.acl.mdl.execute(user, inputs, outputs) == OK
    assert np.isnan(np.frombuffer(rig.read(work + 128, 64), np.float16)).all()
    later = rig.value(load(path, work, WORK_BYTES, 0, 0))
    assert rig.acl.mdl.execute_async(later, inputs, outputs, rig.stream) == OK
    with pytest.raises(UndefinedBehaviourError, match="queued on the same memory"):
        rig.read(work, 64)
    assert rig.synchronize() == OK


def test_a_fault_of_the_program_shows_at_the_synchronize(rig: Rig) -> None:
    specs = ((TensorSpec("i", "int32", (1,)),), (TensorSpec("y", "float32", (1,)),))
    table = helper.make_tensor("table", 1, [4], [1.0, 2.0, 3.0, 4.0])
    node = helper.make_node("Gather", ["table", "i"], ["y"])
    model = float_model({}, {"y": (1,)}, [node], [table])
    model.graph.input.append(helper.make_tensor_value_info("i", 6, (1,)))
    model_id = rig.load(str(write_simulated_om(rig.folder / "g.om", model, specs, [{}])))
    outputs = rig.dataset([(rig.malloc(4), 4)])
    fresh = rig.dataset([(rig.malloc(4), 4)])  # poison as an index
    assert rig.acl.mdl.execute_async(model_id, fresh, outputs, rig.stream) == OK
    assert rig.synchronize() == 507015
    assert "the program failed" in rig.text()
    assert rig.synchronize() == OK


def test_a_model_of_another_chip_does_not_load(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SimulatedCard(soc="Ascend310P1"))
    assert rig.acl.mdl.load_from_file(rig.static_om()) == (0, 500002)
    assert "E10001" in rig.text()
