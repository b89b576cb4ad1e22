"""One run of a model: its checked inputs and outputs, and what the device does with them.

Source: hicann/ge runtime/v1/graph/load/model_manager/davinci_model.cc (UpdateAllNodeArgs,
CheckUserAndModelSize, CheckIoReuseAddrs, CopyOutputForNoZeroCopy).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from omruntime.device.simacl.errors import Code, Refusal, UndefinedBehaviourError
from omruntime.device.simacl.loaded_model import DataBuffer, Dataset, LoadedModel
from omruntime.device.simacl.memory import Bytes, Place, Region, fill_poison
from omruntime.device.simacl.spans import Span
from omruntime.device.simacl.state import State
from omruntime.om_file import (
    GEAR_INPUT,
    DataType,
    TensorDesc,
    gear_input_shapes,
    gear_output_shapes,
)

# How much shorter than the model's own figure a buffer may be.
SIZE_SLACK_BYTES = 64


@dataclass(frozen=True, slots=True)
class BoundTensor:
    """One input or output of a run: where it is, and as what it is read."""

    desc: TensorDesc
    shape: tuple[int, ...]
    region: Region

    @property
    def span(self) -> Span:
        """The bytes that the run touches."""
        return self.region.span


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A run that passed the checks of its submission.

    Attributes:
        inputs, outputs: Without the gear input.
        gear: The gear's values and the buffer that holds them; None without gears.
        copied_back: Output -> input for ref outputs at another address than their input.
    """

    model: LoadedModel
    inputs: tuple[BoundTensor, ...]
    outputs: tuple[BoundTensor, ...]
    gear: tuple[tuple[int, ...], Region] | None
    copied_back: Mapping[int, int]

    @property
    def reads(self) -> tuple[Span, ...]:
        """The memory that the run reads, weights included."""
        gear = () if self.gear is None else (self.gear[1].span,)
        return (*(t.span for t in self.inputs), *gear, *self.model.weight_spans)

    @property
    def writes(self) -> tuple[Span, ...]:
        """The memory that the run writes, its work memory included."""
        outputs = tuple(t.span for t in self.outputs)
        back = (self.inputs[i].span for i in self.copied_back.values())
        return (*outputs, *back, self.model.work)


def plan_run(state: State, model: LoadedModel, inputs: int, outputs: int) -> RunPlan:
    """Check a run's datasets.

    Raises:
        Refusal: Counts, sizes or declared pairs are wrong.
        UndefinedBehaviourError: What the device would do wrong in silence.
    """
    in_set, out_set = (state.handles.get(Dataset, h, "dataset") for h in (inputs, outputs))
    _require_counts(model, in_set, out_set)
    if model.om.gear_index is not None and in_set.gear is None:
        raise UndefinedBehaviourError(
            "the dataset's gear was never set; the device would run whatever the buffer says"
        )
    in_shapes, out_shapes = _shapes(model, in_set.gear)
    bound_in = tuple(
        _bind(state, model, handle, desc, in_shapes[desc.name])
        for handle, desc in zip(in_set.buffers, model.om.inout.inputs, strict=True)
        if desc.name != GEAR_INPUT
    )
    bound_out = tuple(
        _bind(state, model, handle, desc, shape)
        for handle, desc, shape in zip(
            out_set.buffers, model.om.inout.outputs, out_shapes, strict=True
        )
    )
    gear = _gear(state, model, in_set)
    read = {t.desc.name: t.span for t in bound_in}
    if gear is not None:
        read[GEAR_INPUT] = gear[1].span
    _require_apart(model, read, {t.desc.name: t.span for t in bound_out})
    return RunPlan(model, bound_in, bound_out, gear, _check_aliases(model, bound_in, bound_out))


def run(state: State, plan: RunPlan) -> None:
    """What the device does, over the memory as it is now."""
    if plan.model.weights_destroyed_by:
        raise UndefinedBehaviourError(
            f"the model's weights were destroyed by {plan.model.weights_destroyed_by}"
        )
    _use_work_memory(state, plan.model)
    if plan.gear is not None:
        _require_gear(*plan.gear)
    arrays = {
        t.desc.name: t.region.content.view(_dtype(t.desc)).reshape(t.shape) for t in plan.inputs
    }
    names = plan.model.session.output_names
    results = plan.model.session.run(names, arrays)
    for i, (tensor, result) in enumerate(zip(plan.outputs, results, strict=True)):
        if result.shape != tensor.shape or result.dtype != _dtype(tensor.desc):
            raise Refusal(
                Code.RT_AICORE_EXCEPTION,
                f"output {tensor.desc.name} is {result.dtype} {list(result.shape)}, the OM says "
                f"{list(tensor.shape)}",
            )
        written = np.ascontiguousarray(result).view(np.uint8).reshape(-1)
        _write(state, tensor.region.content, written, tensor.span)
        if i in plan.copied_back:
            state.num_extra_copies += 1
            back = plan.inputs[plan.copied_back[i]]
            _write(state, back.region.content, written, back.span)


def _use_work_memory(state: State, model: LoadedModel) -> None:
    """Work memory is scratch: nothing in it survives a run."""
    if model.work in model.user_spans:
        if model.is_work_written:
            work = state.addresses.region(model.work.start, model.work.nbytes, "work memory")
            fill_poison(work.content)
        state.note_write(model.work, "a run whose work memory this is")
        model.is_work_written = False


def _write(state: State, target: Bytes, source: Bytes, span: Span) -> None:
    target[...] = source
    state.note_write(span, "an output of a run")


def _require_counts(model: LoadedModel, inputs: Dataset, outputs: Dataset) -> None:
    inout = model.om.inout
    for what, got, wanted in (
        ("inputs (the gear input counts)", inputs.buffers, inout.inputs),
        ("outputs", outputs.buffers, inout.outputs),
    ):
        if len(got) != len(wanted):
            raise Refusal(
                Code.GE_FAILURE,
                f"[Check] 145000: {len(got)} {what}, the model has {len(wanted)}",
            )


def _shapes(
    model: LoadedModel, gear: int | None
) -> tuple[Mapping[str, tuple[int, ...]], tuple[tuple[int, ...], ...]]:
    inout = model.om.inout
    if gear is None:
        return {t.name: t.dims for t in inout.inputs}, tuple(t.dims for t in inout.outputs)
    return gear_input_shapes(inout, inout.dim_gears[gear]), gear_output_shapes(inout, gear)


def _bind(
    state: State, model: LoadedModel, handle: int, desc: TensorDesc, shape: tuple[int, ...]
) -> BoundTensor:
    buffer = state.handles.get(DataBuffer, handle, "data buffer")
    needed = math.prod(shape) * np.dtype(_dtype(desc)).itemsize
    if buffer.address == 0:
        # As an output, `execute` would fill it with memory of its own, which is not simulated;
        # `execute_async` fails.
        raise Refusal(Code.GE_FAILURE, f"{desc.name}: the data buffer is empty")
    is_geared = model.om.gear_index is not None
    if not is_geared and buffer.size + SIZE_SLACK_BYTES < desc.size_bytes:
        raise Refusal(
            Code.GE_FAILURE,
            f"{desc.name}: a buffer of {buffer.size} bytes, the model wants {desc.size_bytes}",
        )
    if buffer.size < needed:
        raise UndefinedBehaviourError(
            f"{desc.name}: a buffer of {buffer.size} bytes, {list(shape)} takes {needed}"
        )
    return BoundTensor(desc, shape, _on_device(state, model, (buffer.address, needed), desc.name))


def _on_device(state: State, model: LoadedModel, place: tuple[int, int], name: str) -> Region:
    """The memory at (address, bytes), which the model's own device must hold."""
    region = state.addresses.region(*place, f"tensor {name}")
    if region.place is not Place.DEVICE:
        raise UndefinedBehaviourError(f"{name} lies in {region.place.value} memory")
    if region.device_id != model.context.device.device_id:
        raise UndefinedBehaviourError(
            f"{name} lies on device {region.device_id}, the model is loaded on device "
            f"{model.context.device.device_id}"
        )
    return region


def _dtype(desc: TensorDesc) -> str:
    return DataType(desc.dtype).label


def _gear(
    state: State, model: LoadedModel, inputs: Dataset
) -> tuple[tuple[int, ...], Region] | None:
    at = model.om.gear_index
    if at is None or inputs.gear is None:
        return None
    buffer = state.handles.get(DataBuffer, inputs.buffers[at], "data buffer")
    region = _on_device(state, model, (buffer.address, buffer.size), GEAR_INPUT)
    return model.om.inout.dim_gears[inputs.gear], region


def _require_gear(values: tuple[int, ...], region: Region) -> None:
    """The device reads the buffer and not the dataset."""
    item_bytes = 8 if region.content.size >= 8 * len(values) else 4
    held = region.content[: item_bytes * len(values)].view(f"<i{item_bytes}").tolist()
    if held != list(values):
        raise UndefinedBehaviourError(
            f"the gear buffer holds {held} when the run begins, the dataset's gear is "
            f"{list(values)}; another dataset's gear was written over it"
        )


def _require_apart(
    model: LoadedModel, read: Mapping[str, Span], written: Mapping[str, Span]
) -> None:
    """Refuse tensors that lie where the run has something else."""
    for name, span in (*read.items(), *written.items()):
        if span.overlaps(model.work):
            raise UndefinedBehaviourError(f"{name} lies in the model's own work memory")
    for name, span in written.items():
        if any(span.overlaps(weights) for weights in model.weight_spans):
            raise UndefinedBehaviourError(f"output {name} lies over the model's own weights")
        if GEAR_INPUT in read and span.overlaps(read[GEAR_INPUT]):
            raise UndefinedBehaviourError(f"output {name} lies over the gear buffer")


def _check_aliases(
    model: LoadedModel, inputs: tuple[BoundTensor, ...], outputs: tuple[BoundTensor, ...]
) -> dict[int, int]:
    """Check which tensors share memory; returns the ref outputs that are copied back."""
    copied_back: dict[int, int] = {}
    for i, output in enumerate(outputs):
        for j, other in enumerate(outputs[i + 1 :], i + 1):
            if output.span.overlaps(other.span):
                raise UndefinedBehaviourError(f"outputs {i} and {j} overlap")
        declared, ref = model.om.declared_pairs.get(i), model.om.ref_pairs.get(i)
        for j, input_ in enumerate(inputs):
            is_same = input_.span.start == output.span.start
            if j == declared and not is_same:
                raise Refusal(Code.GE_FAILURE, f"input {j} and output {i} must share an address")
            if j == ref and not is_same:
                copied_back[i] = j
            if input_.span.overlaps(output.span) and not (is_same and j in (declared, ref)):
                raise UndefinedBehaviourError(
                    f"input {input_.desc.name} and output {output.desc.name} overlap, and the "
                    f"OM does not declare them a pair"
                )
    return copied_back
