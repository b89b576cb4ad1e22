"""The devices that tests run on, each with programs of its own kind."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import onnx
import pytest

from omruntime.device import Device, open_device
from omruntime.device.ascend import AclLibrary, AscendDevice
from omruntime.device.ascend.acl_module import AclModule
from omruntime.device.simacl import SimulatedCard, Simulation
from omruntime.manifest import ProgramSpec
from tests.omruntime.device.simulated_oms import LARGE_GEAR, SMALL_GEAR, twice_model, write_twice
from tests.omruntime.native.kernels import needs_library

NO_CARD = importlib.util.find_spec("acl") is None
DEVICES = (
    "cpu",
    "openvino",
    pytest.param("native", marks=needs_library),
    "sim:0",
    pytest.param(
        "ascend:0", marks=[pytest.mark.npu, pytest.mark.skipif(NO_CARD, reason="no Ascend card")]
    ),
)


def simulated_device(
    simulation: Simulation, device_id: int = 0, library: AclLibrary | None = None
) -> AscendDevice:
    """A device over a simulation that the test holds."""
    return AscendDevice(
        f"sim:{device_id}",
        device_id,
        library or AclLibrary(cast("AclModule", simulation.module)),
        simulation.set_external_weight_address,
        is_simulated=True,
    )


def as_real_device(simulation: Simulation) -> AscendDevice:
    """A device that takes the simulator for the real driver."""
    return AscendDevice("ascend:0", 0, AclLibrary(cast("AclModule", simulation.module)), None)


@contextmanager
def opened(name: str, card: SimulatedCard | None = None) -> Iterator[Device]:
    """A device that ends without leaks."""
    if not name.startswith("sim"):
        device = open_device(name, num_threads=1)
        yield device
        device.close()
        return
    simulation = Simulation(card)
    simulated = simulated_device(simulation)
    yield simulated
    simulated.close()
    assert simulation.leaks == ()
    assert simulation.is_finalized
    assert simulation.num_pageable_copies == 0


def write_program(device: Device, spec: ProgramSpec, folder: Path) -> ProgramSpec:
    """Write y = x + x with two gears for a device; returns the spec with its path."""
    if device.name in ("cpu", "openvino", "native"):
        onnx.save(twice_model(), folder / "twice.onnx")
        return replace(spec, path="twice.onnx")
    if device.name.startswith("sim"):
        write_twice(folder / "twice.om", (SMALL_GEAR, LARGE_GEAR))
    else:
        _compile(device, folder)
    return replace(spec, path="twice.om")


def _compile(device: Device, folder: Path) -> None:
    atc = shutil.which("atc")
    if atc is None:
        pytest.skip("atc is not on PATH")
    onnx.save(twice_model(), folder / "twice.onnx")
    options = (
        "--framework=5", f"--model={folder / 'twice.onnx'}", f"--output={folder / 'twice'}",
        f"--soc_version={device.soc}", "--input_format=ND", "--input_shape=x:-1,-1",
        "--dynamic_dims=2,1;3,4",
    )  # fmt: skip
    subprocess.run([atc, *options], check=True, timeout=250)
