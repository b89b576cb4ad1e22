"""Tiny models traced for the Ascend profiles, and what such a graph computes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto
from transformers import PreTrainedModel

from export.expanded_session import open_expanded
from export.facts import step_shape
from export.graphs import StepGraph
from export.npu_functions import expand_npu_ops
from export.parity import ParityInput, Reference, check_parity, run_reference, tolerance_for
from export.parity_report import ParityReport
from export.profiles import Profile
from export.step_shape import StepShape
from export.tolerance import Tolerance
from export.trace import write_step_graph
from omruntime.buckets import Bucket, BucketTable, Phase

BLOCK = 8
LENGTH = 40
# Few, and covering: two rows, the last of them padding in all but greedy steps.
BUCKETS = (
    Bucket(Phase.DECODE, 2, 1, 5),
    Bucket(Phase.PREFILL, 1, 16, 1),
    Bucket(Phase.PREFILL, 2, 12, 5),
)
PROMPTS = ((5, 6, 7), tuple(range(40, 60)))


@dataclass(frozen=True)
class Proof:
    """What a graph of a model is held against; made once, for all profiles.

    Making the tolerance rounds the model's weights, so graphs are traced before.
    """

    reference: Reference
    tolerance: Tolerance
    token_ids: tuple[int, ...]

    def check(self, program: Path, shape: StepShape) -> ParityReport:
        session = open_expanded(program, 1)
        given = parity_input(shape, self.token_ids)
        return check_parity(session, given, self.reference, self.tolerance, lambda _line: None)


def parity_input(shape: StepShape, token_ids: tuple[int, ...]) -> ParityInput:
    return ParityInput(shape, BucketTable(BUCKETS, BLOCK), token_ids, PROMPTS)


def prove(model: PreTrainedModel, shape: StepShape) -> Proof:
    # Products so small only lose by being shared out.
    torch.set_num_threads(1)
    token_ids = tuple(np.random.default_rng(3).integers(3, 300, LENGTH).tolist())
    given = parity_input(shape, token_ids)
    reference = run_reference(model, given)
    tolerance = tolerance_for(model, given, reference, allows_overflow=False)
    return Proof(reference, tolerance, token_ids)


def trace_half(model: PreTrainedModel, profile: Profile, folder: Path) -> StepShape:
    """Write step.onnx and step.weights into a folder."""
    folder.mkdir(exist_ok=True)
    shape = step_shape(model, BLOCK, profile)
    graph = StepGraph(model, shape, profile)
    try:
        write_step_graph(graph, folder / "step.onnx", folder / "step.weights")
    finally:
        graph.release()
    return shape


def product_types(model: onnx.ModelProto) -> set[int]:
    """The element types that go into matrix products."""
    return types_into(model, "MatMul", "Gemm")


def types_into(model: onnx.ModelProto, *op_types: str) -> set[int]:
    """The element types of all that goes into nodes of some operators."""
    graph = onnx.shape_inference.infer_shapes(expand_npu_ops(model)).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.input)}
    types |= {t.name: t.data_type for t in graph.initializer}
    nodes = [n for n in model.graph.node if n.op_type in op_types]
    return {types.get(name, TensorProto.UNDEFINED) for n in nodes for name in n.input}
