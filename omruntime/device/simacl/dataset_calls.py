"""Data buffers, datasets and gears.

Source: CANN pyACL reference, acl.create_data_buffer, acl.mdl.create_dataset,
acl.mdl.set_input_dynamic_dims; hicann/ge runtime/v1/executor/ge_executor.cc (SetDynamicDims,
GetCurDynamicDims).
"""

from __future__ import annotations

import numpy as np

from omruntime.device.simacl.errors import Code, Refusal, UndefinedBehaviourError
from omruntime.device.simacl.loaded_model import DataBuffer, Dataset, LoadedModel, SimulatedOm
from omruntime.device.simacl.memory import Place
from omruntime.device.simacl.model_calls import find_model, require_own_context
from omruntime.device.simacl.spans import Span
from omruntime.device.simacl.state import Calls, State


def create_data_buffer(state: State, address: int, size: int) -> int:
    """See acl.create_data_buffer."""
    return state.handles.add(DataBuffer(address, size))


def destroy_data_buffer(state: State, handle: int) -> None:
    """See acl.destroy_data_buffer; the memory it points at stays."""
    for task in state.pending():
        for dataset in task.datasets:
            if handle in state.handles.get(Dataset, dataset, "dataset").buffers:
                raise UndefinedBehaviourError(f"destroy_data_buffer while {task.what} is queued")
    state.handles.remove(DataBuffer, handle, "data buffer")


def update_data_buffer(state: State, handle: int, address: int, size: int) -> None:
    """See acl.update_data_buffer."""
    buffer = state.handles.get(DataBuffer, handle, "data buffer")
    buffer.address, buffer.size = address, size


def get_data_buffer_addr(state: State, handle: int) -> int:
    """See acl.get_data_buffer_addr."""
    return state.handles.get(DataBuffer, handle, "data buffer").address


def get_data_buffer_size(state: State, handle: int) -> int:
    """See acl.get_data_buffer_size; cut to 32 bits."""
    return state.handles.get(DataBuffer, handle, "data buffer").size & 0xFFFF_FFFF


def get_data_buffer_size_v2(state: State, handle: int) -> int:
    """See acl.get_data_buffer_size_v2."""
    return state.handles.get(DataBuffer, handle, "data buffer").size


def create_dataset(state: State) -> int:
    """See acl.mdl.create_dataset."""
    return state.handles.add(Dataset())


def destroy_dataset(state: State, handle: int) -> None:
    """See acl.mdl.destroy_dataset: neither data buffers nor memory are given back."""
    for task in state.pending():
        if handle in task.datasets:
            raise UndefinedBehaviourError(f"destroy_dataset while {task.what} is queued")
    state.handles.remove(Dataset, handle, "dataset")


def add_dataset_buffer(state: State, handle: int, buffer: int) -> int:
    """See acl.mdl.add_dataset_buffer; returns the dataset."""
    state.handles.get(DataBuffer, buffer, "data buffer")
    state.handles.get(Dataset, handle, "dataset").buffers.append(buffer)
    return handle


def get_dataset_num_buffers(state: State, handle: int) -> int:
    """See acl.mdl.get_dataset_num_buffers."""
    return len(state.handles.get(Dataset, handle, "dataset").buffers)


def get_dataset_buffer(state: State, handle: int, index: int) -> int:
    """See acl.mdl.get_dataset_buffer; 0 out of range."""
    buffers = state.handles.get(Dataset, handle, "dataset").buffers
    return buffers[index] if index < len(buffers) else 0


def set_input_dynamic_dims(
    state: State, model_id: int, handle: int, index: int, dims: object
) -> None:
    """See acl.mdl.set_input_dynamic_dims: writes the gear into the dataset's gear buffer now."""
    model = find_model(state, model_id)
    dataset = state.handles.get(Dataset, handle, "dataset")
    wanted = _dims(dims)
    if model.om.gear_index is None:
        raise Refusal(Code.INVALID_PARAM, f"model {model_id} has no gears")
    if index != model.om.gear_index:
        raise UndefinedBehaviourError(
            f"set_input_dynamic_dims writes over input {index}; the gear input is "
            f"{model.om.gear_index}"
        )
    require_own_context(state.context(), model, "set_input_dynamic_dims")
    gear = _find_gear(model.om, wanted)
    _write_gear(state, model, dataset, model.om.inout.dim_gears[gear])
    dataset.gear = model.gear = gear


def _dims(dims: object) -> tuple[int, ...]:
    if not isinstance(dims, dict) or not {"dimCount", "dims"} <= dims.keys():
        raise TypeError("acl.mdl.set_input_dynamic_dims args parse failed")
    count, values = dims["dimCount"], dims["dims"]
    if (
        type(count) is not int
        or not isinstance(values, list)
        or any(type(value) is not int for value in values)
    ):
        raise TypeError("acl.mdl.set_input_dynamic_dims args parse failed")
    if count == 0:
        raise Refusal(Code.INVALID_PARAM, "dimCount is 0")
    if count != len(values):
        raise UndefinedBehaviourError(f"dimCount is {count}, dims has {len(values)} values")
    return tuple(values)


def _find_gear(om: SimulatedOm, wanted: tuple[int, ...]) -> int:
    if len(wanted) != len(om.open_dims):
        raise Refusal(
            Code.GE_DYNAMIC_INPUT_LENGTH_INVALID,
            f"got {len(wanted)} dims, the inputs have {len(om.open_dims)} together",
        )
    for i, (got, dim) in enumerate(zip(wanted, om.open_dims, strict=True)):
        if dim not in (-1, got):
            raise Refusal(
                Code.GE_DYNAMIC_INPUT_LENGTH_INVALID,
                f"dim {i} is {got}, in all gears it is {dim}",
            )
    if wanted not in om.full_gears:
        raise Refusal(Code.GE_DYNAMIC_BATCH_SIZE_INVALID, f"no gear has the dims {list(wanted)}")
    return om.full_gears.index(wanted)


def _write_gear(
    state: State, model: LoadedModel, dataset: Dataset, values: tuple[int, ...]
) -> None:
    index = model.om.gear_index
    assert index is not None
    if index >= len(dataset.buffers):
        raise Refusal(Code.INVALID_PARAM, f"the dataset has no buffer {index}")
    buffer = state.handles.get(DataBuffer, dataset.buffers[index], "data buffer")
    item_bytes = 8 if buffer.size >= 8 * len(values) else 4
    if buffer.address == 0 or buffer.size < item_bytes * len(values):
        raise Refusal(
            Code.GE_DYNAMIC_INPUT_ADDR_INVALID,
            f"the gear buffer has {buffer.size} bytes at {buffer.address:#x}",
        )
    region = state.addresses.region(buffer.address, buffer.size, "the gear buffer")
    if region.place is not Place.DEVICE or region.device_id != model.context.device.device_id:
        raise UndefinedBehaviourError("the gear buffer is not device memory of the model's chip")
    state.require_idle("set_input_dynamic_dims", (), (region.span,))
    numbers = np.array(values, f"<i{item_bytes}").view(np.uint8)
    region.content[: numbers.size] = numbers
    state.note_write(Span.of(buffer.address, numbers.size), "a gear")


CALLS: Calls = {
    "create_data_buffer": create_data_buffer,
    "destroy_data_buffer": destroy_data_buffer,
    "update_data_buffer": update_data_buffer,
    "get_data_buffer_addr": get_data_buffer_addr,
    "get_data_buffer_size": get_data_buffer_size,
    "get_data_buffer_size_v2": get_data_buffer_size_v2,
    "mdl.create_dataset": create_dataset,
    "mdl.destroy_dataset": destroy_dataset,
    "mdl.add_dataset_buffer": add_dataset_buffer,
    "mdl.get_dataset_num_buffers": get_dataset_num_buffers,
    "mdl.get_dataset_buffer": get_dataset_buffer,
    "mdl.set_input_dynamic_dims": set_input_dynamic_dims,
}
