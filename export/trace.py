"""One model to one ONNX file with symbolic batch, tokens, past_blocks and num_blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch._dynamo
import torch.fx.config
from torch import Tensor
from torch.export import Dim, ExportedProgram

from export import aten_ops, aten_shapes  # noqa: F401  (they fill EMITTERS)
from export.emitters import EMITTERS
from export.graphs import StepGraph
from export.lower_ascend import lower_ascend
from export.lower_cpu import lower_cpu
from export.lower_openvino import Storage, lower_openvino
from export.step_shape import StepShape, input_specs, output_specs
from export.translate import Translator
from omruntime.errors import ExportError
from omruntime.manifest import KVLayout

# Traced with sizes that differ from each other and from 0 and 1, which torch would take as fixed;
# the graph holds for every size, 1 included.
_BATCH, _TOKENS, _PAST_BLOCKS = 3, 5, 7
# A head-major pool's length reaches no other tensor, so it is traced as a number and declared
# symbolic.
_NUM_BLOCKS = 11


def write_step_graph(
    graph: StepGraph, path: Path, weights_path: Path, storage: Storage | None = None
) -> None:
    """Trace a step graph and write it as ONNX, its weights in a file of the same folder.

    Args:
        storage: How the `openvino` profile keeps weights; None for the other profiles.

    Raises:
        ExportError: The model uses an operator without translation.
    """
    program = trace(graph)
    translator = Translator(program, EMITTERS)
    inputs, outputs = input_specs(graph.shape), output_specs(graph.shape)
    names = translator.run([spec.name for spec in inputs])
    writer, named = translator.writer, dict(zip(names, outputs, strict=True))
    if graph.profile.dtype == "float16":
        writer, named = lower_ascend(writer, graph.profile, inputs, named)
    else:
        lower_cpu(writer)
    if storage is not None:
        named = lower_openvino(writer, storage, named)
    writer.save(path, weights_path, inputs, named)


def trace(graph: StepGraph) -> ExportedProgram:
    """The step as a torch.export graph, before any decomposition.

    Raises:
        ExportError: The model does something that cannot be traced.
    """
    per_row = {0: Dim.DYNAMIC}
    per_entry = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    pools = [_dynamic_axes(graph.shape) for _ in _pool_sizes(graph.shape)]
    # The cache of fake results is keyed by symbolic shapes, and costs more than it saves.
    uncached = torch._dynamo.config.patch(fake_tensor_cache_enabled=False)
    try:
        with torch.no_grad(), uncached, _without_stack_traces():
            return torch.export.export(
                graph.eval(),
                _example(graph),
                dynamic_shapes=(per_entry, per_entry, per_entry, per_row, per_row, pools),
                strict=False,
            )
    except ExportError:
        raise
    # Whatever a model's own code raises on inputs it was not written for.
    except Exception as error:
        raise ExportError(
            f"{type(graph.model).__name__} cannot be traced as a step graph: "
            f"{type(error).__name__}: {str(error).splitlines()[0]}"
        ) from error


@contextmanager
def _without_stack_traces() -> Iterator[None]:
    """Trace without noting where in the model's code each operator stands: a tenth of the time."""
    before = torch.fx.config.do_not_emit_stack_traces
    torch.fx.config.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        torch.fx.config.do_not_emit_stack_traces = before


def _example(graph: StepGraph) -> tuple[Tensor | list[Tensor], ...]:
    shape = graph.shape

    def ints(*sizes: int) -> Tensor:
        return torch.zeros(*sizes, dtype=torch.int32)

    return (
        ints(_BATCH, _TOKENS),
        ints(_BATCH, _TOKENS),
        ints(_BATCH, _PAST_BLOCKS),
        ints(_BATCH),
        ints(_BATCH),
        [torch.zeros(size) for size in _pool_sizes(shape)],
    )


def _pool_sizes(shape: StepShape) -> list[tuple[int, ...]]:
    if shape.layout is KVLayout.TOKEN_MAJOR:
        return [(_NUM_BLOCKS * shape.block_size, shape.num_planes, shape.head_dim)]
    part = (shape.num_kv_heads, _NUM_BLOCKS, shape.block_size, shape.head_dim)
    return [part] * (2 * shape.num_layers)


def _dynamic_axes(shape: StepShape) -> dict[int, object]:
    if shape.layout is KVLayout.TOKEN_MAJOR:
        return {0: shape.block_size * Dim("num_blocks")}
    return {}
