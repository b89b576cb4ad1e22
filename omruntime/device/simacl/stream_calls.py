"""Streams and waiting for them.

Source: CANN runtime API reference, stream management; hicann/runtime
src/runtime/api/impl/api_error.cc (StreamSynchronize).
"""

from __future__ import annotations

from omruntime.device.simacl.errors import Code, Refusal, UndefinedBehaviourError
from omruntime.device.simacl.objects import Stream
from omruntime.device.simacl.running import (
    find_stream,
    raise_stream_error,
    require_same_context,
    run_until,
)
from omruntime.device.simacl.state import Calls, State

_PERSISTENT, _DEVICE_USE_ONLY = 0x4, 0x20
_COMPLETE, _NOT_READY = 0, 1


def create_stream(state: State) -> int:
    """See acl.rt.create_stream."""
    return create_stream_with_config(state, 0, 0)


def create_stream_with_config(state: State, priority: int, flag: int) -> int:
    """See acl.rt.create_stream_with_config."""
    context = state.context()
    if context.device.num_streams >= state.card.max_streams:
        raise Refusal(Code.RT_NO_STREAM_RESOURCE, f"all {state.card.max_streams} streams are used")
    context.device.num_streams += 1
    stream = Stream(context, waits_at_once=bool(flag & (_PERSISTENT | _DEVICE_USE_ONLY)))
    return state.handles.add(stream)


def destroy_stream(state: State, handle: int) -> None:
    """See acl.rt.destroy_stream."""
    context = state.context()
    stream = state.handles.get(Stream, handle, "stream")
    require_same_context(context, stream.context, "stream")
    if stream.pending:
        raise UndefinedBehaviourError("destroy_stream while work is queued; synchronize first")
    state.handles.remove(Stream, handle, "stream")
    context.device.num_streams -= 1


def stream_query(state: State, handle: int) -> int:
    """See acl.rt.stream_query."""
    return _NOT_READY if find_stream(state, handle).pending else _COMPLETE


def synchronize_stream(state: State, handle: int) -> None:
    """See acl.rt.synchronize_stream: needs some context, not the stream's own."""
    synchronize_stream_with_timeout(state, handle, -1)


def synchronize_stream_with_timeout(state: State, handle: int, timeout_ms: int) -> None:
    """See acl.rt.synchronize_stream_with_timeout; -1 waits for ever."""
    if timeout_ms == 0 or timeout_ms < -1:
        raise Refusal(Code.RT_PARAM_INVALID, f"timeout {timeout_ms} ms, wanted -1 or above 0")
    context = state.context()
    stream = state.handles.get(Stream, handle, "stream") if handle else context.default_stream
    if stream.waits_at_once:
        return
    time_left_s = None if timeout_ms == -1 else timeout_ms / 1000
    if not run_until(state, stream, stream.num_submitted, time_left_s):
        raise Refusal(Code.RT_STREAM_SYNC_TIMEOUT, f"the stream has work after {timeout_ms} ms")
    raise_stream_error(stream)


def synchronize_device(state: State) -> None:
    """See acl.rt.synchronize_device: every stream of the current device."""
    device = state.context().device
    streams = [s for s in state.streams() if s.context.device is device and not s.waits_at_once]
    for stream in streams:
        run_until(state, stream, stream.num_submitted)
    for stream in streams:
        raise_stream_error(stream)


CALLS: Calls = {
    "rt.create_stream": create_stream,
    "rt.create_stream_with_config": create_stream_with_config,
    "rt.destroy_stream": destroy_stream,
    "rt.stream_query": stream_query,
    "rt.synchronize_stream": synchronize_stream,
    "rt.synchronize_stream_with_timeout": synchronize_stream_with_timeout,
    "rt.synchronize_device": synchronize_device,
}
