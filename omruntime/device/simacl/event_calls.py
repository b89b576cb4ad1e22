"""Events: marks in streams.

Source: CANN runtime API reference, event management; hicann/runtime include/external/acl/acl_rt.h
(ACL_EVENT_SYNC, ACL_EVENT_TIME_LINE, ACL_EVENT_CAPTURE_STREAM_PROGRESS).
"""

from __future__ import annotations

from time import perf_counter

from omruntime.device.simacl.errors import Code, Refusal, UndefinedBehaviourError
from omruntime.device.simacl.objects import Event, Task
from omruntime.device.simacl.running import (
    find_stream,
    raise_stream_error,
    require_same_context,
    run_until,
)
from omruntime.device.simacl.state import Calls, State

_SYNC, _TIME_LINE = 0x1, 0x8
_COMPLETE, _NOT_READY = 1, 0


def create_event(state: State) -> int:
    """See acl.rt.create_event."""
    return state.handles.add(Event(state.context()))


def create_event_with_flag(state: State, flag: int) -> int:
    """See acl.rt.create_event_with_flag."""
    event = Event(state.context(), bool(flag & _SYNC), bool(flag & _TIME_LINE))
    return state.handles.add(event)


def destroy_event(state: State, handle: int) -> None:
    """See acl.rt.destroy_event."""
    event = _find(state, handle)
    if not event.is_complete:
        raise UndefinedBehaviourError("destroy_event before the event is complete")
    state.handles.remove(Event, handle, "event")
    if event.stream is not None:
        event.context.device.num_recorded_events -= 1


def record_event(state: State, handle: int, stream: int) -> None:
    """See acl.rt.record_event: captures the work submitted so far."""
    event, queue = _find(state, handle), find_stream(state, stream)
    device = event.context.device
    if event.stream is None:
        if device.num_recorded_events >= state.card.max_events:
            # On hardware the call blocks until another event is given back.
            raise Refusal(Code.RT_NO_EVENT_RESOURCE, f"all {state.card.max_events} events in use")
        device.num_recorded_events += 1

    def reach() -> None:
        event.reached_at = perf_counter()

    queue.submit(Task("an event's record", reach))
    event.stream, event.position, event.reached_at = queue, queue.num_submitted, None
    event.behind = {**queue.behind, queue: queue.num_submitted}


def reset_event(state: State, handle: int, stream: int) -> None:
    """See acl.rt.reset_event."""
    event, queue = _find(state, handle), find_stream(state, stream)
    if not event.can_reset:
        raise Refusal(Code.RT_PARAM_INVALID, "reset_event wants an event made with flag SYNC")

    def reset() -> None:
        if event.stream is not None:
            event.context.device.num_recorded_events -= 1
        event.stream, event.behind = None, {}

    queue.submit(Task("an event's reset", reset))


def query_event_status(state: State, handle: int) -> int:
    """See acl.rt.query_event_status: 1 complete, 0 not."""
    return _COMPLETE if _find(state, handle).is_complete else _NOT_READY


def synchronize_event(state: State, handle: int) -> None:
    """See acl.rt.synchronize_event."""
    synchronize_event_with_timeout(state, handle, -1)


def synchronize_event_with_timeout(state: State, handle: int, timeout_ms: int) -> None:
    """See acl.rt.synchronize_event_with_timeout."""
    if timeout_ms == 0 or timeout_ms < -1:
        raise Refusal(Code.RT_PARAM_INVALID, f"timeout {timeout_ms} ms, wanted -1 or above 0")
    event = _find(state, handle)
    if event.stream is None:
        return
    time_left_s = None if timeout_ms == -1 else timeout_ms / 1000
    if not run_until(state, event.stream, event.position, time_left_s):
        raise Refusal(Code.RT_EVENT_SYNC_TIMEOUT, f"not reached after {timeout_ms} ms")
    raise_stream_error(event.stream)


def stream_wait_event(state: State, stream: int, handle: int) -> None:
    """See acl.rt.stream_wait_event: the stream waits, not the host."""
    queue, event = find_stream(state, stream), _find(state, handle)
    source, position = event.stream, event.position
    queue.wait_behind(event.behind)

    def wait() -> None:
        if source is not None and source is not queue:
            run_until(state, source, position)

    queue.submit(Task("a wait for an event", wait))


def event_elapsed_time(state: State, start: int, end: int) -> float:
    """See acl.rt.event_elapsed_time: milliseconds."""
    first, last = _find(state, start), _find(state, end)
    if first.reached_at is None or last.reached_at is None:
        raise Refusal(Code.RT_EVENT_TIMESTAMP_INVALID, "an event was not recorded or not reached")
    if not (first.has_time and last.has_time):
        raise Refusal(Code.RT_EVENT_TIMESTAMP_INVALID, "wanted events made with flag TIME_LINE")
    return (last.reached_at - first.reached_at) * 1000


def _find(state: State, handle: int) -> Event:
    context = state.context()
    event = state.handles.get(Event, handle, "event")
    require_same_context(context, event.context, "event")
    return event


CALLS: Calls = {
    "rt.create_event": create_event,
    "rt.create_event_with_flag": create_event_with_flag,
    "rt.destroy_event": destroy_event,
    "rt.record_event": record_event,
    "rt.reset_event": reset_event,
    "rt.query_event_status": query_event_status,
    "rt.synchronize_event": synchronize_event,
    "rt.synchronize_event_with_timeout": synchronize_event_with_timeout,
    "rt.stream_wait_event": stream_wait_event,
    "rt.event_elapsed_time": event_elapsed_time,
}
