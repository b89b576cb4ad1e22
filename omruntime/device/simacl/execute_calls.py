"""acl.mdl.execute and execute_async.

Source: CANN model API reference, aclmdlExecute and aclmdlExecuteAsync; hicann/ge
api/acl/acl_model/model/model.cpp (ModelExecute),
runtime/v1/graph/load/model_manager/davinci_model.cc (InitModelStream).
"""

from __future__ import annotations

from omruntime.device.simacl.errors import Code, Refusal, UndefinedBehaviourError
from omruntime.device.simacl.loaded_model import LoadedModel
from omruntime.device.simacl.model_calls import find_model, require_own_context
from omruntime.device.simacl.objects import Stream, Task
from omruntime.device.simacl.run_plan import RunPlan, plan_run, run
from omruntime.device.simacl.running import find_stream
from omruntime.device.simacl.state import Calls, State


def execute(state: State, model_id: int, inputs: int, outputs: int) -> None:
    """See acl.mdl.execute: at once, on a stream of its own."""
    with state.lock:
        plan = _plan(state, model_id, inputs, outputs, "execute")
        if plan.model.is_executing:
            raise UndefinedBehaviourError(f"two threads run model {model_id} at once")
        _require_alone(state, model_id, plan.model, None)
        state.require_idle(f"execute of model {model_id}", plan.reads, plan.writes)
        plan.model.is_executing = True
    try:
        state.delays.pause(state.delays.execute_s, True)
        run(state, plan)
    finally:
        plan.model.is_executing = False


def execute_async(state: State, model_id: int, inputs: int, outputs: int, stream: int) -> None:
    """See acl.mdl.execute_async: queued; what fails on the device shows at a synchronize."""
    queue = find_stream(state, stream)
    plan = _plan(state, model_id, inputs, outputs, "execute_async")
    _require_alone(state, model_id, plan.model, queue)
    state.submit(
        queue,
        Task(
            f"a run of model {model_id}",
            lambda: run(state, plan),
            plan.reads,
            plan.writes,
            model_id,
            (inputs, outputs),
            plan.model.work,
            state.delays.execute_s,
        ),
    )


def _plan(state: State, model_id: int, inputs: int, outputs: int, style: str) -> RunPlan:
    model = find_model(state, model_id)
    require_own_context(state.context(), model, f"a run of model {model_id}")
    plan = plan_run(state, model, inputs, outputs)
    if model.style not in ("", style):
        raise Refusal(
            Code.GE_FAILURE, f"not support mix execute: model {model_id} began with {model.style}"
        )
    model.style = style
    return plan


def _require_alone(state: State, model_id: int, model: LoadedModel, queue: Stream | None) -> None:
    """One id runs on one stream at a time, and so does one work memory.

    Args:
        queue: Where the run is queued, behind what is there; None for a run that begins at once.
    """
    for stream in state.streams():
        if stream is queue:
            continue
        for task in stream.pending:
            if task.model_id == model_id:
                raise UndefinedBehaviourError(f"model {model_id} is in flight on another stream")
            if task.work is not None and task.work.overlaps(model.work):
                raise _shared_work(task.what, model_id)
    for other_id, other in state.models.items():
        if other is not model and other.is_executing and other.work.overlaps(model.work):
            raise _shared_work(f"execute of model {other_id}", model_id)


def _shared_work(what: str, model_id: int) -> UndefinedBehaviourError:
    return UndefinedBehaviourError(
        f"{what} is in flight and shares its work memory with model {model_id}; run one after "
        f"the other, on one stream"
    )


CALLS: Calls = {"mdl.execute": execute, "mdl.execute_async": execute_async}
