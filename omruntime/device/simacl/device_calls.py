"""acl.rt: devices and contexts.

Source: hicann/runtime src/acl/aclrt_impl/context.cpp, src/runtime/api/impl/api_impl.cc
(SetDevice); CANN runtime API reference, device management, context management.
"""

from __future__ import annotations

from omruntime.device.simacl.errors import Code, Refusal, UndefinedBehaviourError
from omruntime.device.simacl.leaks import note, note_device, owned_by_contexts
from omruntime.device.simacl.objects import Context, Event, SimulatedDevice, Stream
from omruntime.device.simacl.state import Calls, State

_RUN_MODE_HOST = 1


def get_device_count(state: State) -> int:
    """See acl.rt.get_device_count."""
    return len(state.devices)


def get_run_mode(state: State) -> int:
    """See acl.rt.get_run_mode: a card in a host."""
    return _RUN_MODE_HOST


def set_device(state: State, device_id: int) -> None:
    """See acl.rt.set_device."""
    device = state.device(device_id)
    if device.primary is None:
        device.primary = state.handles.add(Context(device, is_primary=True))
        device.num_streams += 1
    device.num_set += 1
    state.thread.context = device.primary


def reset_device(state: State, device_id: int) -> None:
    """See acl.rt.reset_device; undoes one set_device."""
    device = state.device(device_id)
    if device.num_set == 0:
        raise Refusal(Code.RT_CONTEXT_RELEASE_ERROR, f"device {device_id} is not set")
    device.num_set -= 1
    if device.num_set == 0:
        tear_down(state, device)


def reset_device_force(state: State, device_id: int) -> None:
    """See acl.rt.reset_device_force; ignores the count."""
    device = state.device(device_id)
    if device.num_set == 0:
        raise Refusal(Code.RT_CONTEXT_RELEASE_ERROR, f"device {device_id} is not set")
    device.num_set = 0
    tear_down(state, device)


def get_device(state: State) -> int:
    """See acl.rt.get_device."""
    return state.context().device.device_id


def create_context(state: State, device_id: int) -> int:
    """See acl.rt.create_context; the new context becomes the thread's current one."""
    device = state.device(device_id)
    handle = state.handles.add(Context(device, is_primary=False))
    device.num_streams += 1
    state.thread.context = handle
    return handle


def destroy_context(state: State, handle: int) -> None:
    """See acl.rt.destroy_context."""
    context = state.handles.get(Context, handle, "context")
    if context.is_primary:
        raise Refusal(Code.RT_CONTEXT_NULL, "the primary context cannot be destroyed")
    if any(s.pending for s in state.streams() if s.context is context):
        raise UndefinedBehaviourError("destroy_context while work is queued; synchronize first")
    for what, owner in owned_by_contexts(state):
        if owner is context:
            note(state, f"{what} of a destroyed context")
    state.handles.remove(Context, handle, "context")
    context.device.num_streams -= 1
    if state.thread.context == handle:
        state.thread.context = None


def set_context(state: State, handle: int) -> None:
    """See acl.rt.set_context."""
    state.handles.get(Context, handle, "context")
    state.thread.context = handle


def get_context(state: State) -> int:
    """See acl.rt.get_context."""
    state.context()
    assert state.thread.context is not None
    return state.thread.context


def tear_down(state: State, device: SimulatedDevice) -> None:
    """End everything on a device; what was alive is a leak."""
    note_device(state, device)
    if any(s.pending for s in state.streams() if s.context.device is device):
        raise UndefinedBehaviourError("a device is reset while work is queued; synchronize first")
    for model_id, model in list(state.models.items()):
        if model.context.device is device:
            del state.models[model_id]
    _remove_handles(state, device)
    for address in list(device.memory.blocks):
        device.memory.give_back(address)
    device.primary, device.num_streams, device.num_recorded_events = None, 0, 0


def _remove_handles(state: State, device: SimulatedDevice) -> None:
    for handle, stream in state.handles.all_of(Stream):
        if stream.context.device is device:
            state.handles.remove(Stream, handle, "stream")
    for handle, event in state.handles.all_of(Event):
        if event.context.device is device:
            state.handles.remove(Event, handle, "event")
    for handle, context in state.handles.all_of(Context):
        if context.device is device:
            state.handles.remove(Context, handle, "context")


CALLS: Calls = {
    "rt.get_device_count": get_device_count,
    "rt.get_run_mode": get_run_mode,
    "rt.set_device": set_device,
    "rt.reset_device": reset_device,
    "rt.reset_device_force": reset_device_force,
    "rt.get_device": get_device,
    "rt.create_context": create_context,
    "rt.destroy_context": destroy_context,
    "rt.set_context": set_context,
    "rt.get_context": get_context,
}
