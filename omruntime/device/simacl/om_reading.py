"""A simulated OM, read for loading or for its description.

Source: hicann/ge base/common/helper/model_helper.cc (what a load checks),
graph_metadef/graph/attr/ge_attr_define.cc (names of model attributes).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from omruntime.device.simacl.errors import Code, Refusal
from omruntime.device.simacl.loaded_model import SimulatedOm
from omruntime.errors import BundleError
from omruntime.om_file import (
    GEAR_INPUT,
    OmFile,
    PartitionType,
    gear_output_shapes,
    parse_inout_info,
    read_om,
)
from omruntime.om_file.model_def import read_model_def
from omruntime.om_file.simulated import SimulatedProgram

DECLARED_PAIRS = "output_reuse_input_mem_indexes"
# A model attribute of this simulator alone; on hardware the loader finds it out.
REF_PAIRS = "simulated_ref_outputs"


def read_path(path: str) -> SimulatedOm:
    """The OM at a path.

    Raises:
        Refusal: Unreadable, damaged, or not a simulated one.
    """
    file = Path(path)
    try:
        state = file.stat()
        identity = f"{file.resolve()} {state.st_size} {state.st_mtime_ns}"
        return _read(read_om(file), identity, file.parent)
    except (OSError, BundleError) as error:
        raise Refusal(Code.GE_EXEC_MODEL_PATH_INVALID, f"[Load] {path}: {error}") from error


def read_memory(content: bytes) -> SimulatedOm:
    """The OM in memory; errors as `read_path`."""
    identity = hashlib.sha256(content).hexdigest()
    try:
        return _read(read_om(content), identity, None)
    except BundleError as error:
        raise Refusal(Code.GE_EXEC_MODEL_PATH_INVALID, f"[Load] {error}") from error


def _read(om: OmFile, identity: str, folder: Path | None) -> SimulatedOm:
    program = SimulatedProgram.read(om)
    partitions = om.blocks[0].partitions
    for wanted in (PartitionType.MODEL_INOUT_INFO, PartitionType.MODEL_DEF):
        if wanted not in partitions:
            raise BundleError(f"the OM has no {wanted.name}")
    model = read_model_def(partitions[PartitionType.MODEL_DEF])
    found = SimulatedOm(
        identity,
        folder,
        parse_inout_info(partitions[PartitionType.MODEL_INOUT_INFO]),
        model.text("soc_version"),
        model.integer("memory_size") or 0,
        model.integer("weight_size") or 0,
        program,
        _pairs(model.text(DECLARED_PAIRS)),
        _pairs(model.text(REF_PAIRS)),
    )
    _require_whole_gears(found)
    return found


def _require_whole_gears(om: SimulatedOm) -> None:
    """Refuse gears that do not fit the inputs and outputs, before a call stumbles over them.

    Raises:
        BundleError: One does not fit.
    """
    if om.full_gears and om.gear_index is None:
        raise BundleError(f"the OM has gears and no input {GEAR_INPUT}")
    for index in range(len(om.inout.dim_gears)):
        gear_output_shapes(om.inout, index)


def _pairs(text: str) -> Mapping[int, int]:
    """Output -> input, from `input,output|input,output`."""
    try:
        pairs = [item.split(",") for item in text.split("|") if item]
        return {int(output): int(input_) for input_, output in pairs}
    except ValueError as error:
        raise BundleError(f"pairs {text!r}, wanted input,output|input,output: {error}") from error
