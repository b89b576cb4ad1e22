"""Running queued work: when a program waits, and not before.

Owns the one loop that runs tasks. A task that waits for an event runs the event's stream first.
"""

from __future__ import annotations

from omruntime.device.simacl.errors import Code, Refusal
from omruntime.device.simacl.objects import Context, Stream, Task
from omruntime.device.simacl.state import State


def find_stream(state: State, handle: int, what: str = "stream") -> Stream:
    """The stream of a handle, 0 meaning the current context's default stream.

    Raises:
        Refusal: No current context, or the stream is of another one.
    """
    context = state.context()
    stream = context.default_stream if handle == 0 else state.handles.get(Stream, handle, what)
    require_same_context(context, stream.context, what)
    return stream


def require_same_context(current: Context, owner: Context, what: str) -> None:
    """Refuse a stream or event of another context than the thread's current one."""
    if owner is not current:
        raise Refusal(Code.RT_STREAM_CONTEXT, f"{what} is not in the current context")


def run_until(
    state: State, stream: Stream, position: int, time_left_s: float | None = None
) -> bool:
    """Run a stream's work up to a position.

    Args:
        time_left_s: How much simulated time may pass; None for any.

    Returns:
        Whether the position was reached; what is left stays queued.
    """
    while stream.num_completed < position:
        task = stream.pending[0]
        if not _pass_time(state, task, time_left_s):
            return False
        if time_left_s is not None:
            time_left_s -= task.delay_s
        if task.holds_lock:
            with state.lock:
                _run(state, stream, task)
        else:
            _run(state, stream, task)
    return True


def raise_stream_error(stream: Stream) -> None:
    """Report the last failed work, once.

    Raises:
        Refusal: Work failed since the last report.
    """
    error, stream.error = stream.error, None
    if error is not None:
        raise Refusal(*error)


def _pass_time(state: State, task: Task, time_left_s: float | None) -> bool:
    if time_left_s is not None and task.delay_s > time_left_s:
        state.delays.pause(time_left_s, False)
        task.delay_s -= time_left_s
        return False
    state.delays.pause(task.delay_s, False)
    return True


def _run(state: State, stream: Stream, task: Task) -> None:
    faults = state.faults["run"]
    try:
        if faults:
            raise Refusal(*faults.popleft())
        task.run()
    except Refusal as error:
        # Default failure mode: the stream goes on, and a later error overwrites an earlier.
        stream.error = (error.code, error.text)
    finally:
        stream.pending.popleft()
        stream.num_completed += 1
