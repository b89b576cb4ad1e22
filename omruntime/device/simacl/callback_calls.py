"""Callbacks: a function queued on a stream, run by the thread that processes reports.

Source: CANN runtime API reference, execution control (aclrtLaunchCallback, aclrtProcessReport);
hicann/runtime src/runtime/core/src/stream/stream_sqcq_manage.cc.
"""

from __future__ import annotations

import queue
import threading

from omruntime.device.simacl.errors import Code, Refusal, UndefinedBehaviourError
from omruntime.device.simacl.objects import Report, Task
from omruntime.device.simacl.running import find_stream
from omruntime.device.simacl.state import Calls, State

# A callback must not allocate, submit or wait: the stream that would serve it waits for it.
REFUSED_IN_CALLBACKS = frozenset(
    {
        "rt.malloc",
        "rt.malloc_align32",
        "rt.malloc_cached",
        "rt.malloc_host",
        "rt.create_context",
        "rt.create_stream",
        "rt.create_stream_with_config",
        "rt.create_event",
        "rt.create_event_with_flag",
        "rt.memcpy",
        "rt.memcpy_async",
        "rt.memset",
        "rt.memset_async",
        "rt.record_event",
        "rt.reset_event",
        "rt.stream_wait_event",
        "rt.launch_callback",
        "rt.process_report",
        "rt.synchronize_stream",
        "rt.synchronize_stream_with_timeout",
        "rt.synchronize_device",
        "rt.synchronize_event",
        "rt.synchronize_event_with_timeout",
        "mdl.load_from_file",
        "mdl.load_from_mem",
        "mdl.load_from_file_with_mem",
        "mdl.load_from_mem_with_mem",
        "mdl.load_with_config",
        "mdl.set_input_dynamic_dims",
        "mdl.execute",
        "mdl.execute_async",
    }
)
_BLOCK = 1
_FAR_FUTURE_S = 3600.0


def subscribe_report(state: State, thread_id: int, stream: int) -> None:
    """See acl.rt.subscribe_report."""
    find_stream(state, stream).report_thread = thread_id
    state.reports.setdefault(thread_id, queue.SimpleQueue())


def unsubscribe_report(state: State, thread_id: int, stream: int) -> None:
    """See acl.rt.unsubscribe_report."""
    found = find_stream(state, stream)
    if found.report_thread != thread_id:
        raise Refusal(Code.RT_THREAD_SUBSCRIBE, f"thread {thread_id} has not subscribed")
    found.report_thread = None
    if all(s.report_thread != thread_id for s in state.streams()):
        del state.reports[thread_id]


def launch_callback(
    state: State, function: object, user_data: object, block_type: int, stream: int
) -> None:
    """See acl.rt.launch_callback."""
    if not callable(function):
        raise TypeError("acl.rt.launch_callback args parse failed")
    found = find_stream(state, stream)
    if found.report_thread is None:
        raise Refusal(Code.RT_THREAD_SUBSCRIBE, "no thread has subscribed to the stream")
    report = Report(lambda: function(user_data))
    thread_id = found.report_thread

    def run() -> None:
        _hand_over(state, report, thread_id, block_type)

    found.submit(Task("a callback", run, holds_lock=False))


def _hand_over(state: State, report: Report, thread_id: int, block_type: int) -> None:
    state.reports[thread_id].put(report)
    if block_type != _BLOCK:
        return
    if thread_id == threading.get_ident():
        raise UndefinedBehaviourError(
            "a thread waits for a blocking callback that it would have to run itself: deadlock"
        )
    report.is_done.wait()


def process_report(state: State, timeout_ms: int) -> None:
    """See acl.rt.process_report; -1 waits for ever."""
    if timeout_ms == 0 or timeout_ms < -1:
        raise Refusal(Code.INVALID_PARAM, f"timeout {timeout_ms} ms, wanted -1 or above 0")
    reports = state.reports.get(threading.get_ident())
    if reports is None:
        raise Refusal(Code.RT_THREAD_SUBSCRIBE, "this thread has not subscribed")
    try:
        report = reports.get(timeout=_FAR_FUTURE_S if timeout_ms == -1 else timeout_ms / 1000)
    except queue.Empty:
        raise Refusal(Code.RT_REPORT_TIMEOUT, f"no report in {timeout_ms} ms") from None
    state.thread.is_in_callback = True
    try:
        report.call()
    finally:
        state.thread.is_in_callback = False
        report.is_done.set()


CALLS: Calls = {
    "rt.subscribe_report": subscribe_report,
    "rt.unsubscribe_report": unsubscribe_report,
    "rt.launch_callback": launch_callback,
    "rt.process_report": process_report,
}
