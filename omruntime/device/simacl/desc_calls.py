"""acl.mdl: what a model's inputs, outputs and gears are.

Misuse is silent here, as in the library: an index out of range gives 0, an empty name or -1.

Source: hicann/ge api/acl/acl_model/model/model.cpp; CANN pyACL reference, acl.mdl getters.
"""

from __future__ import annotations

import math

from omruntime.device.simacl.errors import Code, Refusal
from omruntime.device.simacl.loaded_model import ModelDesc
from omruntime.device.simacl.model_calls import find_model
from omruntime.device.simacl.om_reading import read_path
from omruntime.device.simacl.state import Calls, State
from omruntime.om_file import TensorDesc, gear_output_shapes

ALL_INPUTS = (1 << 64) - 1  # the index -1 of the gear getters, as it arrives in C


def create_desc(state: State) -> int:
    """See acl.mdl.create_desc."""
    return state.handles.add(ModelDesc())


def destroy_desc(state: State, desc: int) -> None:
    """See acl.mdl.destroy_desc."""
    state.handles.remove(ModelDesc, desc, "model desc")


def get_desc(state: State, desc: int, model_id: int) -> None:
    """See acl.mdl.get_desc."""
    state.context()
    found = _find(state, desc)
    found.model = find_model(state, model_id)
    found.om = found.model.om


def get_desc_from_file(state: State, desc: int, path: str) -> None:
    """See acl.mdl.get_desc_from_file."""
    _find(state, desc).om = read_path(path)


def _find(state: State, desc: int) -> ModelDesc:
    return state.handles.get(ModelDesc, desc, "model desc")


def _tensors(state: State, desc: int, is_output: bool) -> tuple[TensorDesc, ...]:
    om = _find(state, desc).om
    if om is None:
        return ()
    return om.inout.outputs if is_output else om.inout.inputs


def _at(state: State, desc: int, index: int, is_output: bool) -> TensorDesc | None:
    tensors = _tensors(state, desc, is_output)
    return tensors[index] if index < len(tensors) else None


def get_num_inputs(state: State, desc: int) -> int:
    """See acl.mdl.get_num_inputs; the gear input counts."""
    return len(_tensors(state, desc, False))


def get_num_outputs(state: State, desc: int) -> int:
    """See acl.mdl.get_num_outputs."""
    return len(_tensors(state, desc, True))


def get_input_size_by_index(state: State, desc: int, index: int) -> int:
    """See acl.mdl.get_input_size_by_index; of the largest gear."""
    tensor = _at(state, desc, index, False)
    return 0 if tensor is None else tensor.size_bytes


def get_output_size_by_index(state: State, desc: int, index: int) -> int:
    """See acl.mdl.get_output_size_by_index; of the largest gear."""
    tensor = _at(state, desc, index, True)
    return 0 if tensor is None else tensor.size_bytes


def get_input_name_by_index(state: State, desc: int, index: int) -> str:
    """See acl.mdl.get_input_name_by_index."""
    tensor = _at(state, desc, index, False)
    return "" if tensor is None else tensor.name


def get_output_name_by_index(state: State, desc: int, index: int) -> str:
    """See acl.mdl.get_output_name_by_index: node, output index and tensor name."""
    tensor = _at(state, desc, index, True)
    return "" if tensor is None else tensor.name


def get_input_data_type(state: State, desc: int, index: int) -> int:
    """See acl.mdl.get_input_data_type."""
    tensor = _at(state, desc, index, False)
    return -1 if tensor is None else tensor.dtype


def get_output_data_type(state: State, desc: int, index: int) -> int:
    """See acl.mdl.get_output_data_type."""
    tensor = _at(state, desc, index, True)
    return -1 if tensor is None else tensor.dtype


def get_input_format(state: State, desc: int, index: int) -> int:
    """See acl.mdl.get_input_format."""
    tensor = _at(state, desc, index, False)
    return -1 if tensor is None else tensor.format


def get_output_format(state: State, desc: int, index: int) -> int:
    """See acl.mdl.get_output_format."""
    tensor = _at(state, desc, index, True)
    return -1 if tensor is None else tensor.format


def get_input_dims(state: State, desc: int, index: int) -> dict[str, object]:
    """See acl.mdl.get_input_dims; -1 where a gear decides."""
    return _dims(_at(state, desc, index, False))


def get_output_dims(state: State, desc: int, index: int) -> dict[str, object]:
    """See acl.mdl.get_output_dims."""
    return _dims(_at(state, desc, index, True))


def get_cur_output_dims(state: State, desc: int, index: int) -> dict[str, object]:
    """See acl.mdl.get_cur_output_dims: of the gear set last, the largest if none."""
    found, tensor = _find(state, desc), _at(state, desc, index, True)
    if tensor is None or found.om is None or not found.om.inout.dim_gears:
        return _dims(tensor)
    gears = found.om.inout.dim_gears
    gear = found.model.gear if found.model is not None else None
    if gear is None:
        gear = max(range(len(gears)), key=lambda i: math.prod(gears[i]))
    shape = gear_output_shapes(found.om.inout, gear)[index]
    return {"name": tensor.name, "dimCount": len(shape), "dims": list(shape)}


def _dims(tensor: TensorDesc | None) -> dict[str, object]:
    if tensor is None:
        raise Refusal(Code.INVALID_PARAM, "index out of range")
    return {"name": tensor.name, "dimCount": len(tensor.dims), "dims": list(tensor.dims)}


def get_input_index_by_name(state: State, desc: int, name: str) -> int:
    """See acl.mdl.get_input_index_by_name."""
    return _index_of(_tensors(state, desc, False), name)


def get_output_index_by_name(state: State, desc: int, name: str) -> int:
    """See acl.mdl.get_output_index_by_name."""
    return _index_of(_tensors(state, desc, True), name)


def _index_of(tensors: tuple[TensorDesc, ...], name: str) -> int:
    for i, tensor in enumerate(tensors):
        if tensor.name == name:
            return i
    raise Refusal(Code.INVALID_PARAM, f"no tensor is called {name!r}")


def get_input_dynamic_gear_count(state: State, desc: int, index: int) -> int:
    """See acl.mdl.get_input_dynamic_gear_count; the index must be -1."""
    _require_all_inputs(index)
    om = _find(state, desc).om
    return 0 if om is None else len(om.inout.dim_gears)


def get_input_dynamic_dims(
    state: State, desc: int, index: int, gear_count: int
) -> list[dict[str, object]]:
    """See acl.mdl.get_input_dynamic_dims: all dims of all inputs, for each gear."""
    _require_all_inputs(index)
    om = _find(state, desc).om
    gears = () if om is None else om.full_gears
    if gear_count < len(gears):
        raise Refusal(Code.INVALID_PARAM, f"room for {gear_count} of {len(gears)} gears")
    return [{"name": "", "dimCount": len(gear), "dims": list(gear)} for gear in gears]


def _require_all_inputs(index: int) -> None:
    if index != ALL_INPUTS:
        raise Refusal(Code.INVALID_PARAM, f"index is {index}, wanted -1")


CALLS: Calls = {
    "mdl.create_desc": create_desc,
    "mdl.destroy_desc": destroy_desc,
    "mdl.get_desc": get_desc,
    "mdl.get_desc_from_file": get_desc_from_file,
    "mdl.get_num_inputs": get_num_inputs,
    "mdl.get_num_outputs": get_num_outputs,
    "mdl.get_input_size_by_index": get_input_size_by_index,
    "mdl.get_output_size_by_index": get_output_size_by_index,
    "mdl.get_input_name_by_index": get_input_name_by_index,
    "mdl.get_output_name_by_index": get_output_name_by_index,
    "mdl.get_input_data_type": get_input_data_type,
    "mdl.get_output_data_type": get_output_data_type,
    "mdl.get_input_format": get_input_format,
    "mdl.get_output_format": get_output_format,
    "mdl.get_input_dims": get_input_dims,
    "mdl.get_input_dims_v2": get_input_dims,
    "mdl.get_output_dims": get_output_dims,
    "mdl.get_cur_output_dims": get_cur_output_dims,
    "mdl.get_input_index_by_name": get_input_index_by_name,
    "mdl.get_output_index_by_name": get_output_index_by_name,
    "mdl.get_input_dynamic_gear_count": get_input_dynamic_gear_count,
    "mdl.get_input_dynamic_dims": get_input_dynamic_dims,
}
