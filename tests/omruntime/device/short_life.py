"""A short life of three devices that needs every wait, every switch and every free.

Loaded anew over a changed copy of the device's sources; so it imports nothing but omruntime and
ends with an exception when anything is left over. Each call runs in a thread of its own: what a
thread has current is never there by accident.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from omruntime.buckets import Bucket, Phase
from omruntime.device.ascend import AclLibrary, AscendDevice
from omruntime.device.base import DeviceTensor
from omruntime.device.simacl import SimulatedCard, Simulation
from omruntime.errors import BundleError, DeviceError
from omruntime.manifest import ProgramSpec, TensorSpec

T = TypeVar("T")
SHAPE = ("batch", "tokens")
SMALL, LARGE = Bucket(Phase.DECODE, 2, 1, 1), Bucket(Phase.PREFILL, 3, 4, 1)
SPEC = ProgramSpec(
    "step", "twice.om", (TensorSpec("x", "float32", SHAPE),),
    (TensorSpec("y", "float32", SHAPE),), (SMALL, LARGE),
)  # fmt: skip
OUTSIDE = ProgramSpec(
    "step", "outside/external.om", (TensorSpec("x", "float32", (16,)),),
    (TensorSpec("y", "float32", (16,)),), (SMALL,),
)  # fmt: skip


class LeftOverError(AssertionError):
    """Something is not as it should be."""


def require(is_right: bool, what: str) -> None:
    if not is_right:
        raise LeftOverError(what)


def elsewhere(call: Callable[..., T], *args: object) -> T:
    """A call in a new thread."""
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call(*args))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def live(folder: Path) -> None:
    """All of it."""
    for part in (_a_whole_life, _a_failed_opening, _failed_loads, _a_bare_life, _many_programs):
        simulation = Simulation(SimulatedCard(num_devices=2))
        part(simulation, AclLibrary(simulation.module), folder)
        require(simulation.leaks == (), f"{part.__name__}: {simulation.leaks}")
        require(simulation.is_finalized, f"{part.__name__}: not finalized")


def _open(
    simulation: Simulation, library: AclLibrary, device_id: int = 0, *,
    shares: bool = True, timeout_ms: int | None = None,
) -> AscendDevice:  # fmt: skip
    setter = simulation.set_external_weight_address if shares else None
    return elsewhere(
        lambda: AscendDevice(
            f"sim:{device_id}", device_id, library, setter,
            is_simulated=True, timeout_ms=timeout_ms,
        )
    )  # fmt: skip


def _twice(device: AscendDevice, simulation: Simulation, folder: Path, device_id: int) -> None:
    """Load, run both gears, bind anew, unload; nothing stays behind."""
    pinned_before = simulation.pinned_bytes
    x, y = elsewhere(device.alloc, 64), elsewhere(device.alloc, 64)
    elsewhere(device.plan_programs, [SPEC], folder)
    require(elsewhere(device.memory_info).free_bytes > 0, "memory")
    pinned = elsewhere(device.host_array, 64)
    program = elsewhere(device.load_program, SPEC, folder)
    work_only = simulation.used_bytes[device_id] - 1056  # the weights go with the program
    for bucket in (SMALL, LARGE):
        shape = (bucket.batch, bucket.tokens)
        into, out = DeviceTensor(x, 0, shape, "float32"), DeviceTensor(y, 0, shape, "float32")
        for _ in range(2):
            elsewhere(program.bind, bucket, {"x": into}, {"y": out})
            elsewhere(device.copy_in, into, np.ones(shape, np.float32))
            elsewhere(program.run, bucket)
    view = pinned[: into.nbytes].view(np.float32).reshape(shape)
    view[...] = 3.0
    elsewhere(device.copy_in, into, view)
    elsewhere(program.run, LARGE)
    array = elsewhere(device.copy_out, out)
    elsewhere(device.synchronize)
    require(bool((array == 6.0).all()), "the answer")
    require(simulation.pinned_bytes == pinned_before + 64 + 64, "staging memory")
    elsewhere(program.run, LARGE)
    elsewhere(program.unload)
    require(simulation.used_bytes[device_id] == work_only, "memory of an unloaded program")
    for buffer in (x, y):
        elsewhere(device.clear, DeviceTensor(buffer, 0, (64,), "uint8"))
        elsewhere(device.free, buffer)
    require(simulation.used_bytes[device_id] == work_only - 2 * 96, "memory of freed buffers")


def _a_whole_life(simulation: Simulation, library: AclLibrary, folder: Path) -> None:
    first = _open(simulation, library)
    second = _open(simulation, library, 1, timeout_ms=60_000)
    _twice(first, simulation, folder, 0)
    _twice(second, simulation, folder, 1)
    elsewhere(first.close)
    require(not simulation.is_finalized, "acl ended under an open device")
    source, target = (elsewhere(second.alloc, 256) for _ in range(2))
    window = DeviceTensor(source, 0, (256,), "uint8")
    elsewhere(second.clear, window)
    chunks = np.arange(4)
    to = DeviceTensor(target, 0, (256,), "uint8")
    elsewhere(second.copy_chunks, to, chunks, window, chunks, 64)
    elsewhere(second.close)


def _a_failed_opening(simulation: Simulation, library: AclLibrary, folder: Path) -> None:
    simulation.fail_next("rt.create_stream", 207008)
    try:
        _open(simulation, library)
    except DeviceError:
        return
    raise LeftOverError("opened without a stream")


def _failed_loads(simulation: Simulation, library: AclLibrary, folder: Path) -> None:
    device = _open(simulation, library)
    elsewhere(device.load_program, SPEC, folder).unload()
    used = simulation.used_bytes[0]
    wrong = ProgramSpec("step", SPEC.path, SPEC.inputs, SPEC.outputs, (SMALL,))
    for call in ("", "mdl.load_with_config", "mdl.get_desc"):
        if call:
            simulation.fail_next(call, 500002)
        try:
            elsewhere(device.load_program, wrong if not call else SPEC, folder)
        except (BundleError, DeviceError):
            pass
        else:
            raise LeftOverError("loaded")
        require(simulation.used_bytes[0] == used, "memory of a failed load")
    elsewhere(device.close)


def _a_bare_life(simulation: Simulation, library: AclLibrary, folder: Path) -> None:
    """Closed with work queued and nothing else to wait for."""
    device = _open(simulation, library)
    buffer = elsewhere(device.alloc, 64)
    elsewhere(device.clear, DeviceTensor(buffer, 0, (64,), "uint8"))
    elsewhere(device.close)


def _many_programs(simulation: Simulation, library: AclLibrary, folder: Path) -> None:
    """Weights outside of the OM, shared and not; the second load finds its memory in place."""
    for shares in (True, False):
        device = _open(simulation, library, shares=shares)
        for _ in range(2):
            program = elsewhere(device.load_program, OUTSIDE, folder)
            require(simulation.pinned_bytes == 0, "staging memory of an upload")
            tensors = [DeviceTensor(elsewhere(device.alloc, 64), 0, (16,), "float32") for _ in "xy"]
            for _ in range(2):
                elsewhere(program.bind, SMALL, {"x": tensors[0]}, {"y": tensors[1]})
                elsewhere(program.run, SMALL)
            elsewhere(program.unload)
        elsewhere(device.close)
