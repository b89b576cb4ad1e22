"""Every return code is looked at: each call that the device makes fails once, and is told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from omruntime.buckets import Bucket, Phase
from omruntime.device.ascend import AclLibrary, AscendDevice
from omruntime.device.ascend.acl_module import AclModels, AclModule, AclRuntime
from omruntime.device.base import DeviceTensor
from omruntime.device.simacl import Simulation
from omruntime.device.simacl.signatures import load_signatures
from omruntime.errors import DeviceError
from omruntime.manifest import ProgramSpec
from tests.omruntime.device.simacl.test_model_calls import external_om
from tests.omruntime.device.simulated_oms import LARGE_GEAR, SMALL_GEAR, TWICE_TENSORS, write_twice

SMALL = Bucket(Phase.DECODE, 2, 1, 1)
TWICE = ProgramSpec("step", "twice.om", *TWICE_TENSORS, (SMALL, Bucket(Phase.PREFILL, 3, 4, 1)))
SETTER = "aclmdlSetExternalWeightAddress"
CODE = 507899


def calls_that_fail() -> list[str]:
    """The calls that the device may make and that answer with a code, or with a handle or 0."""
    names = [
        *(f"rt.{name}" for name in vars(AclRuntime)),
        *(f"mdl.{name}" for name in vars(AclModels)),
        *vars(AclModule),
    ]
    known = load_signatures()
    found = [n for n in names if n in known and (known[n].has_status or "create_" in n)]
    return [*(f"acl.{name}" for name in found), SETTER]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    write_twice(folder / "twice.om", (SMALL_GEAR, LARGE_GEAR))
    external_om(folder)
    return folder


def live(simulation: Simulation, folder: Path, fails_setter: bool, timeout_ms: int | None) -> None:
    """Open, load, run, wait, give back; the device ends whatever happens."""

    def set_weight(handle: int, name: str, address: int, size: int) -> int:
        if fails_setter:
            return CODE
        return simulation.set_external_weight_address(handle, name, address, size)

    library = AclLibrary(cast("AclModule", simulation.module))
    device = AscendDevice("sim:0", 0, library, set_weight, is_simulated=True, timeout_ms=timeout_ms)
    try:
        device.memory_info()
        device.plan_programs([TWICE], folder)
        program = device.load_program(TWICE, folder)
        x, y = (DeviceTensor(device.alloc(64), 0, (2, 1), "float32") for _ in range(2))
        program.bind(SMALL, {"x": x}, {"y": y})
        device.clear(y)
        device.copy_in(x, np.ones((2, 1), np.float32))
        program.run(SMALL)
        device.synchronize()
        program.unload()
    finally:
        device.close()


@pytest.mark.parametrize("call", calls_that_fail())
def test_a_call_that_fails_is_told_by_name_and_leaves_nothing(call: str, folder: Path) -> None:
    simulation = Simulation()
    if call != SETTER:
        simulation.fail_next(call.removeprefix("acl."), CODE)
    wanted = rf"{re.escape(call)} returned ({CODE} \(|no handle)"
    with pytest.raises(DeviceError, match=wanted):
        live(simulation, folder, call == SETTER, 1000 if call.endswith("timeout") else None)
    # What could not be given back is left over, and nothing else.
    is_an_end = re.search(r"\.(free|free_host|destroy_\w+|unload|reset_device|finalize)$", call)
    assert is_an_end or simulation.leaks == ()
