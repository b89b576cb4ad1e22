"""Loading: memory, config handles, external weights, the end of a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from omruntime.device.simacl import UndefinedBehaviourError
from omruntime.manifest import TensorSpec
from omruntime.om_file.simulated import WEIGHTS_LOCATION, SimulatedWeight
from tests.omruntime.device.simacl.rig import H2D, LARGE_BYTES, OK, GearedRun, Rig, StaticRun
from tests.omruntime.device.simulated_oms import (
    LARGE_GEAR,
    TWICE_TENSORS,
    WEIGHT_BYTES,
    WORK_BYTES,
    float_model,
    twice_model,
    write_simulated_om,
    write_twice,
)

LOAD_TYPE, PATH, WEIGHT_ADDR, WEIGHT_SIZE, WORK_ADDR, WORK_SIZE = 1, 2, 5, 6, 7, 8


def test_sizes_are_those_of_the_om(rig: Rig) -> None:
    assert rig.acl.mdl.query_size(rig.static_om()) == (WORK_BYTES, WEIGHT_BYTES, OK)
    assert rig.acl.mdl.query_size("nowhere.om") == (0, 0, 145002)
    assert rig.acl.mdl.load_from_file("nowhere.om") == (0, 145002)


def test_a_load_takes_and_gives_back_device_memory(rig: Rig) -> None:
    model = rig.load(rig.static_om())
    assert rig.simulation.used_bytes == (WORK_BYTES + WEIGHT_BYTES + 64,)
    assert rig.acl.mdl.unload(model) == OK
    assert rig.simulation.used_bytes == (0,)
    assert rig.acl.mdl.unload(model) == 145003
    desc = rig.acl.mdl.create_desc()
    assert rig.acl.mdl.get_desc(desc, model) == 145003


def test_an_om_of_the_real_compiler_is_refused(rig: Rig) -> None:
    path = Path(rig.static_om())
    content = path.read_bytes()
    path.write_bytes(content[:84] + b"real__" + content[90:])
    assert rig.acl.mdl.load_from_file(str(path)) == (0, 145002)
    assert "the simulator only runs what simatc made" in rig.text()


def test_memory_that_is_too_small_is_refused(rig: Rig) -> None:
    block, load = rig.malloc(8192), rig.acl.mdl.load_from_file_with_mem
    path = rig.static_om()
    assert load(path, block, WORK_BYTES - 1, 0, 0) == (0, 145000)
    assert load(path, 0, 0, block, WEIGHT_BYTES - 1) == (0, 145000)
    assert load(path, block, WORK_BYTES, block + WORK_BYTES, WEIGHT_BYTES)[1] == OK


def test_memory_of_a_loaded_model_is_not_freed(rig: Rig) -> None:
    work, weight = rig.malloc(WORK_BYTES), rig.malloc(WEIGHT_BYTES)
    load = rig.acl.mdl.load_from_file_with_mem
    model = rig.value(load(rig.static_om(), work, WORK_BYTES, weight, WEIGHT_BYTES))
    for block in (work, weight):
        with pytest.raises(UndefinedBehaviourError, match="unload it first"):
            rig.acl.rt.free(block)
    assert rig.acl.mdl.unload(model) == OK
    assert rig.acl.rt.free(work) == OK
    assert rig.acl.rt.free(weight) == OK


def test_two_oms_in_one_weight_memory_destroy_the_first(rig: Rig) -> None:
    weight, load = rig.malloc(WEIGHT_BYTES), rig.acl.mdl.load_from_file_with_mem
    path = rig.static_om()
    first = rig.value(load(path, 0, 0, weight, WEIGHT_BYTES))
    again = rig.value(load(path, 0, 0, weight, WEIGHT_BYTES))  # the same OM may share
    datasets = (
        rig.dataset([(rig.device_bytes(bytes(LARGE_BYTES)), LARGE_BYTES)]),
        rig.dataset([(rig.malloc(LARGE_BYTES), LARGE_BYTES)]),
    )
    assert rig.acl.mdl.execute(first, *datasets) == OK
    other = str(write_twice(rig.folder / "other.om"))
    second = rig.value(load(other, 0, 0, weight, WEIGHT_BYTES))
    assert rig.acl.mdl.execute(second, *datasets) == OK
    for model in (first, again):
        with pytest.raises(UndefinedBehaviourError, match="weights were destroyed"):
            rig.acl.mdl.execute(model, *datasets)


def test_the_same_om_in_shifted_weight_memory_destroys_the_first(static: StaticRun) -> None:
    weight, load = static.malloc(2 * WEIGHT_BYTES), static.acl.mdl.load_from_file_with_mem
    path = static.static_om()
    first = static.value(load(path, 0, 0, weight, WEIGHT_BYTES))
    static.value(load(path, 0, 0, weight + 64, WEIGHT_BYTES))
    with pytest.raises(UndefinedBehaviourError, match="weights were destroyed"):
        static.acl.mdl.execute(first, static.inputs, static.outputs)


def test_unload_waits_for_nothing(static: StaticRun) -> None:
    assert static.launch() == OK
    with pytest.raises(UndefinedBehaviourError, match="while it runs"):
        static.acl.mdl.unload(static.model)
    assert static.synchronize() == OK
    assert static.acl.mdl.unload(static.model) == OK
    assert static.launch() == 145003


def test_unload_in_another_context_is_caught(static: StaticRun) -> None:
    static.value(static.acl.rt.create_context(0))
    with pytest.raises(UndefinedBehaviourError, match="another context"):
        static.acl.mdl.unload(static.model)


def test_a_load_from_memory_reads_the_bytes_at_load(rig: Rig) -> None:
    content = Path(rig.static_om()).read_bytes()
    model, code = rig.acl.mdl.load_from_mem(rig.acl.util.bytes_to_ptr(content), len(content))
    assert (model, code) == (1, OK)
    assert rig.acl.mdl.load_from_mem(0, 5) == (0, 100000)
    damaged = content[:-1]
    address = rig.acl.util.bytes_to_ptr(damaged)
    assert rig.acl.mdl.load_from_mem(address, len(damaged)) == (0, 145002)


def test_gears_and_pairs_that_cannot_be_are_refused_at_load(rig: Rig) -> None:
    assert rig.acl.mdl.load_from_file(rig.static_om(output_reuse_input_mem_indexes="0")) == (
        0,
        145002,
    )
    whole = Path(rig.geared_om()).read_bytes()
    for old, new in ((b"0,0,2,1", b"0,0,2,z"), (b"0,0,2,1", b"7,0,2,1")):
        damaged = whole.replace(old, new)
        address = rig.acl.util.bytes_to_ptr(damaged)
        assert rig.acl.mdl.load_from_mem(address, len(damaged)) == (0, 145002)


def test_memory_of_a_load_lies_on_the_models_device(rig: Rig) -> None:
    host = rig.value(rig.acl.rt.malloc_host(WORK_BYTES))
    with pytest.raises(UndefinedBehaviourError, match=r"work memory .* not on the model's device"):
        rig.acl.mdl.load_from_file_with_mem(rig.static_om(), host, WORK_BYTES, 0, 0)


def test_work_memory_over_the_weights_is_caught(rig: Rig) -> None:
    block, load = rig.malloc(WORK_BYTES), rig.acl.mdl.load_from_file_with_mem
    with pytest.raises(UndefinedBehaviourError, match="work memory and weights of one load"):
        load(rig.static_om(), block, WORK_BYTES, block + 64, WEIGHT_BYTES)


def test_a_program_that_does_not_load_is_refused(rig: Rig) -> None:
    model = twice_model()
    model.graph.node[0].op_type = "Nonsense"
    path = write_simulated_om(rig.folder / "bad.om", model, TWICE_TENSORS, (LARGE_GEAR,))
    assert rig.acl.mdl.load_from_file(str(path)) == (0, 500002)
    assert "the program does not load" in rig.text()


def test_a_program_that_gives_other_shapes_than_its_om_says_fails(rig: Rig) -> None:
    specs = (TWICE_TENSORS[0], (TensorSpec("y", "float32", (12, 1)),))
    path = write_simulated_om(rig.folder / "odd.om", twice_model(), specs, (LARGE_GEAR,))
    inputs = rig.dataset([(rig.device_bytes(bytes(LARGE_BYTES)), LARGE_BYTES)])
    outputs = rig.dataset([(rig.malloc(LARGE_BYTES), LARGE_BYTES)])
    assert rig.acl.mdl.execute(rig.load(str(path)), inputs, outputs) == 507015
    assert "the OM says [12, 1]" in rig.text()


def configured(rig: Rig, **options: object) -> tuple[int, int]:
    """A load through a config handle with these options."""
    numbers = {"load_type": LOAD_TYPE, "path": PATH, "weight": WEIGHT_ADDR,
               "weight_size": WEIGHT_SIZE, "work": WORK_ADDR, "work_size": WORK_SIZE,
               "weight_path": 14}  # fmt: skip
    handle = rig.acl.mdl.create_config_handle()
    for name, value in options.items():
        assert rig.acl.mdl.set_config_opt(handle, numbers[name], value) == OK
    result: tuple[int, int] = rig.acl.mdl.load_with_config(handle)
    assert rig.acl.mdl.destroy_config_handle(handle) == OK
    return result


def test_config_handles_want_a_load_type_and_a_path(rig: Rig) -> None:
    path = rig.static_om()
    assert configured(rig, path=path) == (0, 100000)
    assert configured(rig, load_type=1) == (0, 100000)
    assert configured(rig, load_type=9, path=path) == (0, 100000)
    assert configured(rig, load_type=1, path=path, weight_path=64) == (0, 100000)
    assert configured(rig, load_type=1, path=path)[1] == OK
    work = rig.malloc(WORK_BYTES)
    assert configured(rig, load_type=2, path=path, work=work, work_size=WORK_BYTES)[1] == OK
    with pytest.raises(UndefinedBehaviourError, match="ignores the memory"):
        configured(rig, load_type=1, path=path, work=work, work_size=WORK_BYTES)


def test_config_options_are_typed_by_their_number(rig: Rig) -> None:
    handle = rig.acl.mdl.create_config_handle()
    for attr, value in ((PATH, 5), (LOAD_TYPE, "1"), (WORK_ADDR, "x")):
        with pytest.raises(TypeError, match="args parse failed"):
            rig.acl.mdl.set_config_opt(handle, attr, value)
    assert rig.acl.mdl.set_config_opt(handle, 28, 1) == 100000
    assert rig.acl.mdl.set_config_opt(handle, WORK_ADDR, 0) == 100000


def external_om(folder: Path) -> str:
    """y = x + w with w in a file beside the OM; a second OM shares it."""
    shape = (16,)
    tensor = helper.make_tensor("w", TensorProto.FLOAT, shape, bytes(64), raw=True)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", WEIGHTS_LOCATION
    specs = ((TensorSpec("x", "float32", shape),), (TensorSpec("y", "float32", shape),))
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    model = float_model({"x": shape}, {"y": shape}, nodes, [tensor])
    weight = SimulatedWeight("w", "float32", shape, "weight/weight_1", 0)
    (folder / "weight").mkdir(exist_ok=True)
    (folder / "weight" / "weight_1").write_bytes(np.full(16, 7, np.float32).tobytes())
    path = write_simulated_om(folder / "external.om", model, specs, [{}], (weight,), weight_size=0)
    return str(path)


def result_of(rig: Rig, model: int) -> float:
    """One element of y for x = 0."""
    y = rig.malloc(64)
    inputs = rig.dataset([(rig.device_bytes(bytes(64)), 64)])
    assert rig.acl.mdl.execute(model, inputs, rig.dataset([(y, 64)])) == OK
    return float(np.frombuffer(rig.read(y, 4), np.float32)[0])


def test_external_weights_lie_beside_the_om(rig: Rig) -> None:
    assert result_of(rig, rig.load(external_om(rig.folder))) == 7.0
    (rig.folder / "weight" / "weight_1").unlink()
    assert rig.acl.mdl.load_from_file(external_om(rig.folder))[1] == OK
    (rig.folder / "weight" / "weight_1").unlink()
    assert rig.acl.mdl.load_from_file(str(rig.folder / "external.om")) == (0, 500002)
    assert "weight file" in rig.text()
    content = (rig.folder / "external.om").read_bytes()
    address = rig.acl.util.bytes_to_ptr(content)
    assert rig.acl.mdl.load_from_mem(address, len(content)) == (0, 500002)
    assert "weight_1 has no address" in rig.text()


def test_external_weights_are_read_from_the_given_address(rig: Rig) -> None:
    path, set_address = external_om(rig.folder), rig.simulation.set_external_weight_address
    content = np.full(16, 9, np.float32).tobytes()
    device = rig.device_bytes(content)
    handle = rig.acl.mdl.create_config_handle()
    assert rig.acl.mdl.set_config_opt(handle, LOAD_TYPE, 1) == OK
    assert rig.acl.mdl.set_config_opt(handle, PATH, path) == OK
    for size in (0, 33):
        assert set_address(handle, "weight_1", device, size) == 100000
    assert set_address(handle, "weight_1", 0, 64) == 100000
    assert set_address(handle, "weight_1", device, 64) == OK
    models = [rig.value(rig.acl.mdl.load_with_config(handle)) for _ in range(2)]
    assert [result_of(rig, model) for model in models] == [9.0, 9.0]
    with pytest.raises(UndefinedBehaviourError, match="unload it first"):
        rig.acl.rt.free(device)
    assert set_address(handle, "weight_1", device, 32) == OK
    assert rig.acl.mdl.load_with_config(handle) == (0, 500002)


def test_external_weights_must_be_there_when_the_load_reads_them(rig: Rig) -> None:
    path, device = external_om(rig.folder), rig.malloc(64)
    source, _ = rig.pinned(bytes(64))
    assert rig.acl.rt.memcpy_async(device, 64, source, 64, H2D, rig.stream) == OK
    handle = rig.acl.mdl.create_config_handle()
    assert rig.acl.mdl.set_config_opt(handle, LOAD_TYPE, 1) == OK
    assert rig.acl.mdl.set_config_opt(handle, PATH, path) == OK
    assert rig.simulation.set_external_weight_address(handle, "weight_1", device, 64) == OK
    with pytest.raises(UndefinedBehaviourError, match="a load while a copy"):
        rig.acl.mdl.load_with_config(handle)


def test_getters_describe_the_model_and_fail_in_silence(geared: GearedRun) -> None:
    mdl = geared.acl.mdl
    desc = mdl.create_desc()
    assert mdl.get_num_inputs(desc) == 0
    assert mdl.get_desc(desc, geared.model) == OK
    assert (mdl.get_num_inputs(desc), mdl.get_num_outputs(desc)) == (2, 1)
    assert mdl.get_input_name_by_index(desc, 1) == "ascend_mbatch_shape_data"
    assert mdl.get_input_index_by_name(desc, "ascend_mbatch_shape_data") == (1, OK)
    assert mdl.get_output_name_by_index(desc, 0) == "node_y:0:y"
    assert mdl.get_input_dims(desc, 0) == ({"name": "x", "dimCount": 2, "dims": [-1, -1]}, OK)
    assert mdl.get_input_size_by_index(desc, 0) == LARGE_BYTES
    assert (mdl.get_input_data_type(desc, 0), mdl.get_input_format(desc, 0)) == (0, 2)
    assert mdl.get_input_dynamic_gear_count(desc, -1) == (2, OK)
    gears, code = mdl.get_input_dynamic_dims(desc, -1, 2)
    assert code == OK
    assert [g["dims"] for g in gears] == [[2, 1], [3, 4]]
    assert mdl.get_input_dynamic_dims(desc, -1, 1) == ({}, 100000)
    assert mdl.get_cur_output_dims(desc, 0)[0]["dims"] == [3, 4]
    assert geared.set_gear(2, 1) == OK
    assert mdl.get_cur_output_dims(desc, 0)[0]["dims"] == [2, 1]
    assert mdl.get_input_size_by_index(desc, 9) == 0
    assert mdl.get_input_name_by_index(desc, 9) == ""
    assert mdl.get_input_data_type(desc, 9) == -1
    assert mdl.get_input_format(desc, 9) == -1
    assert mdl.get_dataset_buffer(geared.inputs, 9) == 0
    assert mdl.get_input_dims(desc, 9) == ({}, 100000)
    assert mdl.get_input_index_by_name(desc, "nobody")[1] == 100000
    assert mdl.destroy_desc(desc) == OK
    with pytest.raises(UndefinedBehaviourError, match="destroyed before"):
        mdl.get_num_inputs(desc)
