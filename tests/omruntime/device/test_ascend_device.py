"""The Ascend device beyond the protocol: errors, sharing, what a step costs in calls."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omruntime.buckets import Bucket, Phase
from omruntime.device import DeviceTensor, open_device
from omruntime.device.ascend import AclLibrary, AscendDevice
from omruntime.device.ascend.acl_module import AclModule
from omruntime.device.ascend.chunk_runs import join_chunks
from omruntime.device.ascend.driver import Driver
from omruntime.device.ascend.memory import DeviceMemory, reserved_bytes
from omruntime.device.ascend.weights import load_setter
from omruntime.device.simacl import Delays, SimulatedCard, Simulation
from omruntime.engine import Engine
from omruntime.errors import (
    BundleError,
    ConfigError,
    DeviceError,
    OutOfDeviceMemoryError,
    StillRunningError,
)
from omruntime.manifest import ProgramSpec, TensorSpec
from omruntime.sequence import Request
from omruntime.settings import EngineSettings
from tests.omruntime.device.backends import NO_CARD, simulated_device
from tests.omruntime.device.simacl.test_model_calls import external_om
from tests.omruntime.device.simulated_oms import (
    LARGE_GEAR,
    SMALL_GEAR,
    TWICE_TENSORS,
    WEIGHT_BYTES,
    twice_model,
    write_simulated_om,
    write_twice,
)
from tests.omruntime.test_engine import GREEDY
from tests.omruntime.token_major_toy import write_token_major_toy

SMALL, LARGE = Bucket(Phase.DECODE, 2, 1, 1), Bucket(Phase.PREFILL, 3, 4, 1)
TWICE = ProgramSpec("step", "twice.om", *TWICE_TENSORS, (SMALL, LARGE))
MIB = 1 << 20


class CountingModule:
    """The simulated module, or a part of it, with its calls counted by name."""

    def __init__(self, inner: object, calls: Counter[str], prefix: str = "") -> None:
        self._inner, self._calls, self._prefix = inner, calls, prefix

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return CountingModule(found, self._calls, f"{name}.")

        def call(*args: object) -> object:
            self._calls[self._prefix + name] += 1
            return found(*args)

        return call


def counted_device(simulation: Simulation) -> tuple[AscendDevice, Counter[str]]:
    calls: Counter[str] = Counter()
    module = cast("AclModule", CountingModule(simulation.module, calls))
    return simulated_device(simulation, 0, AclLibrary(module)), calls


def test_an_error_names_call_code_and_the_drivers_text() -> None:
    simulation = Simulation()
    device = simulated_device(simulation)
    simulation.fail_next("rt.malloc", 507899, "E19999: inner error")
    with pytest.raises(DeviceError) as refused:
        device.alloc(64)
    assert str(refused.value) == (
        "sim:0: acl.rt.malloc returned 507899 (ACL_ERROR_RT_DRV_INTERNAL_ERROR): 507899: E19999: "
        "inner error"
    )
    assert not isinstance(refused.value, OutOfDeviceMemoryError)
    device.close()


@pytest.mark.parametrize("code", [207001, 207018, 245000])
def test_codes_of_short_memory_have_their_own_class(code: int) -> None:
    simulation = Simulation()
    device = simulated_device(simulation)
    simulation.fail_next("rt.malloc", code)
    with pytest.raises(OutOfDeviceMemoryError, match=r"64 bytes asked, [\d,]+ bytes free"):
        device.alloc(64)
    device.close()


def test_a_watchdog_ends_a_wait_that_takes_too_long(tmp_path: Path) -> None:
    write_twice(tmp_path / "twice.om", (SMALL_GEAR, LARGE_GEAR))
    simulation = Simulation(delays=Delays(execute_s=2.0, pause=lambda seconds, holds: None))
    library = AclLibrary(cast("AclModule", simulation.module))
    setter = simulation.set_external_weight_address
    device = AscendDevice("sim:0", 0, library, setter, is_simulated=True, timeout_ms=1500)
    program = device.load_program(TWICE, tmp_path)
    x, y = (DeviceTensor(device.alloc(64), 0, (2, 1), "float32") for _ in range(2))
    program.bind(SMALL, {"x": x}, {"y": y})
    program.run(SMALL)
    with pytest.raises(DeviceError, match=r"507046 .ACL_ERROR_RT_STREAM_SYNC_TIMEOUT"):
        device.synchronize()
    device.synchronize()
    device.close()
    assert simulation.leaks == ()


def test_nothing_is_taken_from_work_that_does_not_end(tmp_path: Path) -> None:
    """To unload a running model or to free its memory is undefined; the simulator would raise."""
    write_twice(tmp_path / "twice.om", (SMALL_GEAR, LARGE_GEAR))
    simulation = Simulation(delays=Delays(execute_s=60.0, pause=lambda seconds, holds: None))
    library = AclLibrary(cast("AclModule", simulation.module))
    setter = simulation.set_external_weight_address
    device = AscendDevice("sim:0", 0, library, setter, is_simulated=True, timeout_ms=1500)
    program = device.load_program(TWICE, tmp_path)
    x, y = (DeviceTensor(device.alloc(64), 0, (2, 1), "float32") for _ in range(2))
    program.bind(SMALL, {"x": x}, {"y": y})
    program.run(SMALL)
    for take_away in (device.synchronize, program.unload, device.close):
        with pytest.raises(StillRunningError, match="507046"):
            take_away()
    assert not simulation.is_finalized


def test_memory_is_freed_behind_the_work_that_uses_it(tmp_path: Path) -> None:
    """To free under queued work is undefined; the simulator would raise."""
    write_twice(tmp_path / "twice.om", (SMALL_GEAR, LARGE_GEAR))
    simulation = Simulation()
    device = simulated_device(simulation)
    program = device.load_program(TWICE, tmp_path)
    x, y = (DeviceTensor(device.alloc(64), 0, (2, 1), "float32") for _ in range(2))
    program.bind(SMALL, {"x": x}, {"y": y})
    program.run(SMALL)
    device.free(y.buffer)
    device.copy_in(x, np.zeros((2, 1), np.float32))
    device.free(x.buffer)
    device.close()
    assert simulation.leaks == ()


def test_acl_ends_with_its_last_device() -> None:
    simulation = Simulation(SimulatedCard(num_devices=2))
    library = AclLibrary(cast("AclModule", simulation.module))
    first, second = (simulated_device(simulation, i, library) for i in range(2))
    first.close()
    assert not simulation.is_finalized
    assert second.memory_info().free_bytes > 0
    second.close()
    assert simulation.is_finalized
    again = simulated_device(simulation, 0, library)
    again.close()
    assert simulation.leaks == ()


def test_acl_of_somebody_else_stays() -> None:
    """torch-npu in the same process has called `acl.init`; it must not lose acl."""
    simulation = Simulation()
    module = cast("AclModule", simulation.module)
    assert module.init() == 0
    device = simulated_device(simulation)
    device.close()
    assert not simulation.is_finalized


def test_what_fails_while_closing_does_not_keep_the_rest_open() -> None:
    simulation = Simulation()
    device = simulated_device(simulation)
    device.alloc(64)
    simulation.fail_next("rt.synchronize_stream", 507015, "late fault")
    with pytest.raises(DeviceError, match="late fault"):
        device.close()
    assert simulation.leaks == ()
    assert simulation.is_finalized


def test_nothing_is_taken_away_in_another_devices_context(tmp_path: Path) -> None:
    write_twice(tmp_path / "twice.om", (SMALL_GEAR, LARGE_GEAR))
    simulation = Simulation(SimulatedCard(num_devices=2))
    library = AclLibrary(cast("AclModule", simulation.module))
    first = simulated_device(simulation, 0, library)
    program = first.load_program(TWICE, tmp_path)
    second = simulated_device(simulation, 1, library)
    for end in (program.unload, first.close):
        simulation.fail_next("rt.set_context", 507899)
        with pytest.raises(DeviceError, match="set_context returned 507899"):
            end()
    first.close()
    second.close()
    assert simulation.leaks == ()


def test_a_wait_that_fails_keeps_a_buckets_binding(tmp_path: Path) -> None:
    write_twice(tmp_path / "twice.om", (SMALL_GEAR, LARGE_GEAR))
    simulation = Simulation()
    device = simulated_device(simulation)
    program = device.load_program(TWICE, tmp_path)
    x, y = (DeviceTensor(device.alloc(64), 0, (2, 1), "float32") for _ in range(2))
    program.bind(SMALL, {"x": x}, {"y": y})
    simulation.fail_next("rt.synchronize_stream", 507015)
    with pytest.raises(DeviceError, match="507015"):
        program.bind(SMALL, {"x": x}, {"y": y})
    device.close()
    assert simulation.leaks == ()


def test_chips_without_ddr_answer_for_hbm() -> None:
    class Hbm:
        def get_mem_info(self, attr: int) -> tuple[int, int, int]:
            return (5, 9, 0) if attr == 1 else (0, 0, 0)

    class Module:
        rt = Hbm()

    memory = DeviceMemory(Driver(cast("AclModule", Module()), "ascend:0"))
    assert (memory.info().free_bytes, memory.info().total_bytes) == (5, 9)


def test_reservations_follow_the_drivers_rule() -> None:
    simulation = Simulation()
    device = simulated_device(simulation)
    for nbytes in (1, 31, 32, 33, 4096, MIB, MIB + 1, 2 * MIB, 5 * MIB - 1):
        before = simulation.used_bytes[0]
        device.alloc(nbytes)
        assert simulation.used_bytes[0] - before == reserved_bytes(nbytes)
    device.close()


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), unique_by=lambda pair: pair[0]))
def test_joined_chunks_are_the_same_copies(pairs: list[tuple[int, int]]) -> None:
    targets, sources = (np.array([p[i] for p in pairs], np.int64) for i in range(2))
    runs = join_chunks(targets, sources)
    copies = [
        (target + i, source + i)
        for target, source, length in zip(runs.targets, runs.sources, runs.lengths, strict=True)
        for i in range(length)
    ]
    assert copies == pairs
    for i in range(1, len(runs.lengths)):
        ends = [first[i - 1] + runs.lengths[i - 1] for first in (runs.targets, runs.sources)]
        assert ends != [runs.targets[i], runs.sources[i]], "these two are one run"


def test_neighbouring_chunks_are_one_copy() -> None:
    simulation = Simulation()
    device, calls = counted_device(simulation)
    source, target = (DeviceTensor(device.alloc(640), 0, (640,), "uint8") for _ in range(2))
    device.clear(source)
    chunks = np.array([4, 5, 6, 0, 1, 9])
    device.copy_chunks(target, chunks, source, np.array([1, 2, 3, 4, 5, 6]), 64)
    assert calls["rt.memcpy_async"] == 3
    device.synchronize()
    device.close()


@pytest.mark.parametrize(
    ("chunk_bytes", "target", "message"),
    [(32, 0, "wanted a multiple of 64"), (64, 10, "pass the window's end")],
)
def test_wrong_chunks_are_refused(chunk_bytes: int, target: int, message: str) -> None:
    simulation = Simulation()
    device = simulated_device(simulation)
    window = DeviceTensor(device.alloc(640), 0, (640,), "uint8")
    with pytest.raises(DeviceError, match=message):
        device.copy_chunks(window, np.array([target]), window, np.array([1]), chunk_bytes)
    device.close()


def test_wrong_windows_are_refused() -> None:
    simulation = Simulation(SimulatedCard(num_devices=2))
    library = AclLibrary(cast("AclModule", simulation.module))
    device = simulated_device(simulation, 0, library)
    buffer = device.alloc(256)
    with pytest.raises(DeviceError, match="offset 32 is not a multiple of 64"):
        device.clear(DeviceTensor(buffer, 32, (4,), "uint8"))
    with pytest.raises(DeviceError, match="4 bytes for a window of 8"):
        device.copy_in(DeviceTensor(buffer, 0, (8,), "uint8"), np.zeros(4, np.uint8))
    device.close()


def test_outside_weights_lie_on_the_device_once(tmp_path: Path) -> None:
    external_om(tmp_path)
    (tmp_path / "second.om").write_bytes((tmp_path / "external.om").read_bytes())
    (tmp_path / "weight" / "weight_big").write_bytes(bytes(3 * MIB))
    specs = [
        ProgramSpec(
            "step", path, (TensorSpec("x", "float32", (16,)),),
            (TensorSpec("y", "float32", (16,)),), (SMALL,),
        )
        for path in ("external.om", "second.om")
    ]  # fmt: skip
    simulation = Simulation()
    device = simulated_device(simulation)
    planned = {item.name: item.nbytes for item in device.plan_programs(specs, tmp_path)}
    assert planned["weights"] == reserved_bytes(3 * MIB) + 64 + 32
    programs = [device.load_program(spec, tmp_path) for spec in specs]
    assert simulation.used_bytes[0] == planned["weights"] + planned["work memory"]
    x, y = (DeviceTensor(device.alloc(64), 0, (16,), "float32") for _ in range(2))
    for program in programs:
        program.bind(SMALL, {"x": x}, {"y": y})
        device.copy_in(x, np.arange(16, dtype=np.float32))
        program.run(SMALL)
        array = device.copy_out(y)
        device.synchronize()
        assert array.tolist() == [7.0 + i for i in range(16)]
    device.close()
    assert simulation.leaks == ()


def test_work_memory_grows_once_and_is_planned_so(tmp_path: Path) -> None:
    sizes = {"a.om": 8192, "b.om": 4096, "c.om": 16384}
    specs = []
    for name, size in sizes.items():
        write_twice(tmp_path / name, memory_size=size)
        specs.append(ProgramSpec("step", name, *TWICE_TENSORS, (LARGE,)))
    simulation = Simulation()
    device = simulated_device(simulation)
    planned = {item.name: item.nbytes for item in device.plan_programs(specs, tmp_path)}
    assert planned["work memory"] == 8192 + 32 + 16384 + 32
    assert planned["weights"] == 3 * (WEIGHT_BYTES + 32)
    for spec in specs:
        device.load_program(spec, tmp_path)
    assert simulation.used_bytes[0] == planned["work memory"] + planned["weights"]
    device.close()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            TensorSpec("x", "float16", ("batch", "tokens")),
            "x is float32, the manifest says float16",
        ),
        (TensorSpec("x", "float32", ("batch",)), r"x has the dims \[-1, -1\], the manifest says"),
        (
            TensorSpec("z", "float32", ("batch", "tokens")),
            r"inputs are \['x'\], the manifest lists",
        ),
    ],
)
def test_a_program_that_the_manifest_describes_otherwise_is_refused(
    spec: TensorSpec, message: str, tmp_path: Path
) -> None:
    write_twice(tmp_path / "twice.om", (SMALL_GEAR, LARGE_GEAR))
    simulation = Simulation()
    device = simulated_device(simulation)
    with pytest.raises(BundleError, match=message):
        device.load_program(replace(TWICE, inputs=(spec,)), tmp_path)
    device.close()
    assert simulation.leaks == ()


def test_outputs_without_a_tensor_name_are_taken_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    synthetic = (TWICE_TENSORS[0], (TensorSpec("output_0:0", "float32", ("batch", "tokens")),))
    gears = (SMALL_GEAR, LARGE_GEAR)
    write_simulated_om(tmp_path / "twice.om", twice_model(), synthetic, gears)
    simulation = Simulation()
    device = simulated_device(simulation)
    program = device.load_program(TWICE, tmp_path)
    assert "the outputs are called ['0']; they are taken in their order as ['y']" in caplog.text
    x, y = (DeviceTensor(device.alloc(64), 0, (2, 1), "float32") for _ in range(2))
    program.bind(SMALL, {"x": x}, {"y": y})
    device.copy_in(x, np.ones((2, 1), np.float32))
    program.run(SMALL)
    array = device.copy_out(y)
    device.synchronize()
    assert array.tolist() == [[2.0], [2.0]]
    device.close()
    assert simulation.leaks == ()


def test_a_step_allocates_nothing_and_waits_once(tmp_path: Path) -> None:
    bundle = write_token_major_toy(tmp_path / "bundle")
    simulation = Simulation()
    device, calls = counted_device(simulation)
    engine = Engine(device, bundle, EngineSettings())
    engine.warm_up(lambda index, count, bucket: None)
    for i in range(4):
        engine.add(Request(f"r{i}", (3 + i, 5, 7), GREEDY))
    while engine.load().num_running < 4 or engine.num_waiting:
        engine.step()
    engine.step()
    before = simulation.used_bytes, simulation.pinned_bytes
    calls.clear()
    engine.step()
    assert (simulation.used_bytes, simulation.pinned_bytes) == before
    calls.pop("rt.set_context")
    # Inputs in, logits out, and each row's token to its slot; one launch, one wait.
    assert calls["rt.memcpy_async"] <= 2 + 4
    calls.pop("rt.memcpy_async")
    assert calls == {"mdl.execute_async": 1, "rt.synchronize_stream": 1}
    engine.abort_all()
    engine.close()
    assert simulation.leaks == ()


def test_a_bundle_file_that_is_missing_is_named(tmp_path: Path) -> None:
    simulation = Simulation()
    device = simulated_device(simulation)
    with pytest.raises(BundleError, match=r"twice\.om"):
        device.plan_programs([TWICE], tmp_path)
    device.close()


def test_the_simulator_is_opened_by_name_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        device = open_device("sim:1")
    assert (device.name, device.soc) == ("sim:1", "Ascend310P3")
    device.close()
    assert "sim:1 is a SIMULATION of Ascend310P3" in caplog.text
    other = open_device("sim:0@Ascend310B4")
    assert (other.name, other.soc) == ("sim:0@Ascend310B4", "Ascend310B4")
    assert other.memory_info().total_bytes > MIB
    other.close()


@pytest.mark.skipif(not NO_CARD, reason="acl is installed")
def test_without_cann_a_card_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"install the CANN.*set_env\.sh.*om-serve doctor"):
        open_device("ascend:0")


def test_a_cann_library_that_does_not_load_is_refused_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omruntime.device.ascend import opening

    (tmp_path / "acl.py").write_text("raise ImportError('libascendcl.so: no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acl", raising=False)
    opening._acl_library.cache_clear()
    with pytest.raises(ConfigError, match=r"libascendcl\.so: no such file.*om-serve doctor"):
        open_device("ascend:0")


@pytest.mark.skipif(not NO_CARD, reason="CANN is installed")
def test_without_the_setter_weights_are_copied_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert load_setter() is None
    assert "weights are not shared between programs" in caplog.text
