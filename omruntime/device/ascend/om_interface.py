"""What a loaded OM says of its inputs, outputs and gears.

Source: CANN pyACL reference, acl.mdl.get_desc and getters; hicann/ge inc/external/acl/acl_mdl.h
(ACL_DYNAMIC_TENSOR_NAME).
"""

from __future__ import annotations

from dataclasses import dataclass

from omruntime.device.ascend.acl_constants import ALL_INPUTS
from omruntime.device.ascend.driver import Driver
from omruntime.om_file import GEAR_INPUT, data_type_name


@dataclass(frozen=True, slots=True)
class OmTensor:
    """One input or output.

    Attributes:
        name: The ONNX tensor's; of an output `node:index:tensor` the last part.
        dims: -1 where a gear decides; empty for outputs.
    """

    name: str
    dtype: str
    dims: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OmInterface:
    """The whole description.

    Attributes:
        inputs: In order, the gear input included.
        gears: All dims of all inputs of each gear, one after another; empty without gears.
        gear_index, gear_bytes: Position and buffer size of the gear input; None and 0 without.
    """

    inputs: tuple[OmTensor, ...]
    outputs: tuple[OmTensor, ...]
    gears: tuple[tuple[int, ...], ...]
    gear_index: int | None
    gear_bytes: int

    @property
    def data_inputs(self) -> tuple[OmTensor, ...]:
        """The inputs without the gear input."""
        return tuple(t for t in self.inputs if t.name != GEAR_INPUT)


def read_interface(driver: Driver, model_id: int) -> OmInterface:
    """Ask for the description of a loaded model.

    Raises:
        DeviceError: The driver refused.
    """
    mdl = driver.acl.mdl
    desc = driver.require("acl.mdl.create_desc", mdl.create_desc())
    try:
        driver.check("acl.mdl.get_desc", mdl.get_desc(desc, model_id))
        inputs = tuple(_input(driver, desc, i) for i in range(mdl.get_num_inputs(desc)))
        outputs = tuple(_output(driver, desc, i) for i in range(mdl.get_num_outputs(desc)))
        names = [tensor.name for tensor in inputs]
        if GEAR_INPUT not in names:
            return OmInterface(inputs, outputs, (), None, 0)
        at = names.index(GEAR_INPUT)
        gear_bytes = mdl.get_input_size_by_index(desc, at)
        return OmInterface(inputs, outputs, _gears(driver, desc), at, gear_bytes)
    finally:
        driver.check("acl.mdl.destroy_desc", mdl.destroy_desc(desc))


def _input(driver: Driver, desc: int, index: int) -> OmTensor:
    mdl = driver.acl.mdl
    name = mdl.get_input_name_by_index(desc, index)
    dtype = data_type_name(mdl.get_input_data_type(desc, index))
    dims, code = mdl.get_input_dims(desc, index)
    driver.check("acl.mdl.get_input_dims", code)
    return OmTensor(name, dtype, tuple(dims["dims"][: dims["dimCount"]]))


def _output(driver: Driver, desc: int, index: int) -> OmTensor:
    mdl = driver.acl.mdl
    name = mdl.get_output_name_by_index(desc, index)
    dtype = data_type_name(mdl.get_output_data_type(desc, index))
    # ATC names an output `node:index:tensor`.
    return OmTensor(name.rpartition(":")[2], dtype)


def _gears(driver: Driver, desc: int) -> tuple[tuple[int, ...], ...]:
    mdl = driver.acl.mdl
    count, code = mdl.get_input_dynamic_gear_count(desc, ALL_INPUTS)
    driver.check("acl.mdl.get_input_dynamic_gear_count", code)
    gears, code = mdl.get_input_dynamic_dims(desc, ALL_INPUTS, count)
    driver.check("acl.mdl.get_input_dynamic_dims", code)
    return tuple(tuple(gear["dims"][: gear["dimCount"]]) for gear in gears)
