"""Loading an OM into memory that the device reserved.

Source: CANN pyACL reference, acl.mdl.load_with_config, aclmdlConfigAttr; hicann/ge
api/acl/acl_model/model/model_common.cpp (CheckMdlConfigHandle: a load from a file wants type
and path, memory is optional).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omruntime.device.ascend.acl_constants import LOAD_FROM_FILE_WITH_MEM, ConfigAttr
from omruntime.device.ascend.acl_module import ExternalWeightSetter
from omruntime.device.ascend.driver import Driver
from omruntime.device.ascend.memory import AscendBuffer
from omruntime.errors import BundleError
from omruntime.om_file import read_om
from omruntime.om_file.simulated import NAME_PREFIX


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Bytes that a model wants; 0 where it wants none."""

    work_bytes: int
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class LoadMemory:
    """What a model is loaded into; it outlives the model.

    Attributes:
        work: Scratch; shared by programs that run on one stream.
        weight: For the weights inside of the OM.
        external: Weight files on the device by name; empty leaves them to the loader.
    """

    work: AscendBuffer | None
    weight: AscendBuffer | None
    external: Mapping[str, AscendBuffer]


def require_kind(path: Path, wants_simulated: bool, device_name: str) -> None:
    """Refuse simulated programs on a card, and compiled ones on the simulator.

    Raises:
        BundleError: The file is of the other kind, or no OM.
    """
    is_simulated = read_om(path).header.name.startswith(NAME_PREFIX)
    if is_simulated and not wants_simulated:
        raise BundleError(
            f"{path.name} is a SIMULATED program, made by simatc; {device_name} is a real device. "
            f"Compile the bundle with atc, or serve it with --device sim:0"
        )
    if wants_simulated and not is_simulated:
        raise BundleError(
            f"{path.name} was compiled for a real device; {device_name} runs only simulated "
            f"programs. Build the bundle with --atc simatc, or serve it with --device ascend:0"
        )


def query_memory(driver: Driver, path: Path) -> ModelMemory:
    """What a load will want; external weights are not counted.

    Raises:
        BundleError: The driver cannot read the file.
    """
    work_bytes, weight_bytes, code = driver.acl.mdl.query_size(str(path))
    driver.check("acl.mdl.query_size", code)
    return ModelMemory(work_bytes, weight_bytes)


def create_config(driver: Driver) -> int:
    """The handle of a load's options."""
    handle = driver.acl.mdl.create_config_handle()
    return driver.require("acl.mdl.create_config_handle", handle)


def destroy_config(driver: Driver, handle: int) -> None:
    """Give the handle back; the model that was loaded with it stays."""
    code = driver.acl.mdl.destroy_config_handle(handle)
    driver.check("acl.mdl.destroy_config_handle", code)


def load_model(
    driver: Driver,
    handle: int,
    path: Path,
    memory: LoadMemory,
    setter: ExternalWeightSetter | None,
) -> int:
    """Load an OM by a handle of `create_config`; returns the model id.

    Raises:
        OutOfDeviceMemoryError, DeviceError: The driver refused.
    """
    mdl = driver.acl.mdl
    for attr, value in _options(path, memory):
        driver.check("acl.mdl.set_config_opt", mdl.set_config_opt(handle, attr, value))
    if setter is not None:
        for name, buffer in memory.external.items():
            code = setter(handle, name, buffer.address, buffer.nbytes)
            driver.check("aclmdlSetExternalWeightAddress", code)
    model_id, code = mdl.load_with_config(handle)
    driver.check("acl.mdl.load_with_config", code)
    return model_id


def unload_model(driver: Driver, model_id: int) -> None:
    """Unload a model; its memory stays.

    Raises:
        DeviceError: The driver refused.
    """
    driver.check("acl.mdl.unload", driver.acl.mdl.unload(model_id))


def _options(path: Path, memory: LoadMemory) -> list[tuple[ConfigAttr, int | str]]:
    options: list[tuple[ConfigAttr, int | str]] = [
        (ConfigAttr.LOAD_TYPE, LOAD_FROM_FILE_WITH_MEM),
        (ConfigAttr.PATH, str(path)),
    ]
    if memory.work is not None:
        options.append((ConfigAttr.WORKSPACE_ADDR, memory.work.address))
        options.append((ConfigAttr.WORKSPACE_SIZE, memory.work.nbytes))
    if memory.weight is not None:
        options.append((ConfigAttr.WEIGHT_ADDR, memory.weight.address))
        options.append((ConfigAttr.WEIGHT_SIZE, memory.weight.nbytes))
    return options
